"""A recipe's model: built for its images, and tried on an empty one before anything is written."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from glocal.data.images import MemoryImages, Pair
from glocal.data.order import Order
from glocal.errors import GlocalError
from glocal.train.settings import Recipe
from glocal.zoo import create_model


def build(recipe: Recipe, pair: Pair) -> nn.Module:
    """Make the host for these images and graft the mechanisms."""
    arguments = dict(recipe.host.arguments)
    classes = len(pair.train.classes)
    if arguments.setdefault("num_classes", classes) != classes:
        raise GlocalError(
            f"the recipe says {arguments['num_classes']} classes, but {recipe.data.name} has {classes}. "
            f"Leave host.num_classes out, or mend the folders."
        )
    if isinstance(pair.train, MemoryImages) and pair.train.pixels.shape[1] != 3:
        arguments.setdefault("in_chans", pair.train.pixels.shape[1])
    if recipe.data.size is not None and "img_size" not in arguments:
        with suppress(TypeError):  # a host that takes any size has no such argument
            return _made(recipe, arguments | {"img_size": recipe.data.size})
    try:
        return _made(recipe, arguments)
    except TypeError as error:
        raise GlocalError(f"{recipe.host.name} does not take these arguments: {error}.") from None


def _made(recipe: Recipe, arguments: dict[str, Any]) -> nn.Module:
    make = {"preserve": recipe.preserve, "pretrained": recipe.host.pretrained}
    try:
        return create_model(recipe.host.name, *recipe.mechanisms, **make, **arguments)
    except (GlocalError, TypeError):
        raise
    except Exception as error:  # whatever timm makes of arguments that do not fit each other
        raise misfit(recipe, error) from error


def misfit(recipe: Recipe, error: Exception) -> GlocalError:
    """Say that a host cannot be built as it was asked for."""
    given = ", ".join(f"{key}={value}" for key, value in recipe.host.arguments.items())
    with_ = f" with {given}" if given else ""
    return GlocalError(f"{recipe.host.name} cannot be built{with_}: {line(error)}. Change these arguments of the host.")


def line(error: Exception) -> str:
    """Give the first line of what an error says, and the next where that is but its heading."""
    first, *rest = [each.strip() for each in str(error).splitlines()] or [""]
    told = f"{first} {rest[0]}" if first.endswith(":") and rest else first
    return told.rstrip(".") or type(error).__name__


def try_on(model: nn.Module, recipe: Recipe, pair: Pair) -> None:
    """Show the model one empty image, so that what does not fit is told before anything is written."""
    for name, part in model.named_modules():
        chance = getattr(part, "drop_prob", 0.0)
        if isinstance(chance, (int, float)) and not 0 <= chance <= 1:
            raise GlocalError(
                f"{name} drops paths with a chance of {chance:g}. Keep host.drop_path_rate within 0 and 1."
            )
    _show(model, recipe.host.name, recipe, pair, "Mend data.size, or the host's img_size or in_chans.")


def try_teacher(model: nn.Module, name: str, recipe: Recipe, pair: Pair) -> None:
    """Show the teacher one empty image too: it is given what the student is given."""
    advice = "Take one of this size, or give distill.arguments to one by name."
    _show(model, f"the teacher {name}", recipe, pair, advice)


def _show(model: nn.Module, name: str, recipe: Recipe, pair: Pair, advice: str) -> None:
    channels = pair.train.pixels.shape[1] if isinstance(pair.train, MemoryImages) else 3
    height, width = image_size(recipe)
    before, device = model.training, next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(torch.zeros(1, channels, height, width, device=device))
    except Exception as error:  # hosts check their input in many ways, or not at all
        raise GlocalError(
            f"{name} cannot take images of {channels} channels and {height}x{width} pixels: {line(error)}. {advice}"
        ) from error
    finally:
        model.train(before)


def ordered(recipe: Recipe, images: int, accelerator: Accelerator) -> Order:
    """Give the order of so many images, and this process's share of it."""
    rank, world = accelerator.process_index, accelerator.num_processes
    data = recipe.data
    return Order(images, data.batch_size, recipe.seed, data.repeats, recipe.accumulate, rank, world)


def image_size(recipe: Recipe) -> tuple[int, int]:
    """Tell the size images are brought to: the recipe's, or the host's own."""
    size: Any = recipe.data.size or recipe.host.arguments.get("img_size")
    if size is None:
        from timm.models import get_pretrained_cfg

        config: Any = get_pretrained_cfg(recipe.host.name)
        size = tuple(config.input_size[-2:]) if config is not None else 224
    return both_sides(size)


def both_sides(size: Any) -> tuple[int, int]:
    """Give height and width of a size that may be one number for both."""
    sides = (size, size) if isinstance(size, int) else size
    if not (isinstance(sides, tuple) and len(sides) == 2 and all(isinstance(each, int) and each > 0 for each in sides)):
        raise GlocalError(f"host.img_size is {size!r}; it takes pixels, such as 224 or [224, 160].")
    return sides
