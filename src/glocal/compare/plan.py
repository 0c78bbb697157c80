"""What is compared: one recipe per variant and seed, alike in all but the mechanisms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, inf
from pathlib import Path
from typing import Any

import torch

from glocal.data.decode import sides
from glocal.data.images import MemoryImages, Pair, StreamImages
from glocal.data.settings import PRESETS, DataSettings
from glocal.data.sources import NAMED, load
from glocal.errors import GlocalError
from glocal.mechanisms import named, spelled
from glocal.recipes.build import both_sides
from glocal.site import Mechanism
from glocal.train.settings import HostSettings, MixSettings, OptimSettings, Recipe

DEFAULT_VARIANTS = ("life", "local-ffn", "cb")
# Small enough to train on a processor while one waits; a GPU gets DeiT-T, the papers' smallest host. With the rate and
# the length below, the best plain host of benchmarks/digits_choice.py, chosen without the images it is judged on.
SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
FEW = 4  # patches a side below which a lattice has no neighbourhoods to speak of
DIGITS_EPOCHS, DIGITS_RATE = 85, 4e-3
MIDDLE = {"embed_dim": 96, "depth": 6, "num_heads": 3}
_SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224)


@dataclass(frozen=True)
class Variant:
    """A name and the mechanisms behind it; the plain host has none."""

    name: str
    mechanisms: tuple[Mechanism, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A host's recipe, the variants and the seeds."""

    recipe: Recipe
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...] = ()
    planned: int | None = None
    """Epochs that were planned, where the time did not allow them."""
    stopped: bool = False
    """Whether the runs were stopped before their learning rate had come down."""

    @property
    def warning(self) -> str:
        """Say that the runs are shorter than planned."""
        if self.planned is None:
            return ""
        epochs = f"{self.recipe.epochs} of {self.planned} planned epochs, the same for every run"
        if self.stopped:
            return (
                f"time ran out after {epochs}; the learning rate had not come down yet, so all score below their best"
            )
        return f"slower than foreseen: {epochs}; the learning rate was brought down earlier"

    def runs(self) -> Iterator[tuple[Variant, int, Recipe]]:
        """Give every run, all variants of one seed before the next seed."""
        for seed in self.seeds:
            for variant in self.variants:
                yield variant, seed, replace(self.recipe, mechanisms=variant.mechanisms, seed=seed)


def plan(
    data: str | None = None,
    host: str | None = None,
    variants: Sequence[str] = (),
    *,
    seeds: int = 3,
    epochs: int | None = None,
    preserve: bool = False,
    pretrained: bool = False,
    size: int | None = None,
    patch: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
) -> tuple[Plan, Pair]:
    """Look at the images and lay out a fair comparison."""
    if lr is not None and not 0 < lr < inf:
        raise GlocalError(f"the learning rate is {lr}; it must be above 0, such as 1e-3.")
    name = "digits" if data is None else data
    pair = load(DataSettings(name=name))
    # The folder is left with recipes that run from anywhere.
    settings = DataSettings(name=_anywhere(name))
    given = None if host is None else _read_host(host)
    built = None if given is None else given[1].get("img_size")
    if size is not None and built not in (None, size, (size, size)):
        raise GlocalError(f"--size is {size}, but the host is to have img_size={built}. Give one of them.")
    shape, notes = _size(pair, size or built)
    made, few = _host(given, shape, patch, small=data is None, pretrained=pretrained)
    pixels = shape[0] if shape[0] == shape[1] else shape
    batch = batch or min(64 if data is None else 128, _power(len(pair.train) // 4))
    if batch > len(pair.train):
        raise GlocalError(f"--batch is {batch}, but there are only {len(pair.train)} training images. Use fewer.")
    chosen = augment or ("none" if data is None else "light" if max(shape) <= 96 else "crop")
    if chosen not in PRESETS:
        raise GlocalError(f"unknown augmentation {chosen!r}. There are: {', '.join(PRESETS)}.")
    recipe = Recipe(
        host=made,
        data=replace(settings, size=pixels, batch_size=batch, augment=PRESETS[chosen], workers=2),
        epochs=epochs or DIGITS_EPOCHS,
        preserve=preserve,
        optim=OptimSettings(
            lr=lr if lr is not None else (1e-4 if pretrained else DIGITS_RATE if data is None else 1e-3), clip=1.0
        ),
        mix=MixSettings(smoothing=0.1),
        precision="bf16" if torch.cuda.is_available() else "fp32",
        log_every=20,
        trackers=(),
    )
    listed = [Variant("host"), *(_variant(text) for text in (variants or DEFAULT_VARIANTS))]
    if len({each.name for each in listed}) < len(listed):
        raise GlocalError("two variants are the same. Give each once.")
    return Plan(with_epochs(recipe, recipe.epochs), tuple(listed), tuple(range(seeds)), (*notes, *few)), pair


def _anywhere(name: str) -> str:
    """Write a place so that it is found from any folder; the names of known sets stay."""
    place = Path(name)
    return str(place.resolve()) if name not in NAMED and place.exists() else name


def with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """Set the length of a recipe; a tenth of it warms up."""
    return replace(recipe, epochs=epochs, optim=replace(recipe.optim, warmup_epochs=epochs / 10))


def cut(plan: Plan, done: int, epochs: int) -> Plan:
    """Shorten all runs of a plan after some epochs are done; what is left of the warm-up shrinks with them."""
    recipe = plan.recipe
    warmup = min(recipe.optim.warmup_epochs, max(done, epochs / 10))
    shorter = replace(recipe, epochs=epochs, optim=replace(recipe.optim, warmup_epochs=warmup))
    stopped = plan.stopped or epochs == done
    return replace(plan, recipe=shorter, planned=plan.planned or recipe.epochs, stopped=stopped)


def _variant(text: str) -> Variant:
    mechanisms = named(text)
    return Variant(spelled(*mechanisms), mechanisms)


def _size(pair: Pair, asked: Any) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Choose the sides images are brought to: a square of what most of them have, up to 224."""
    if isinstance(pair.train, StreamImages):
        return both_sides(asked or 224), ()
    found = torch.tensor([pair.train.pixels.shape[-2:]]) if isinstance(pair.train, MemoryImages) else sides(pair.train)
    usual = int(found.min(dim=1).values.median())
    if isinstance(pair.train, MemoryImages):
        size = both_sides(asked or min(usual, 224))
    else:
        size = both_sides(asked or max((each for each in _SIZES if each <= usual), default=_SIZES[0]))
    shape = found[:, 1] / found[:, 0] * size[0] / size[1]  # against that of the size
    wide = torch.maximum(shape, 1 / shape).median().item()
    note = f"images of {usual} pixels are brought to {size[0]}x{size[1]}"
    square = f"their longer side is {wide:.1f} times the shorter, so the ends are cut off"
    crop = f"; {square if size[0] == size[1] else 'what does not fit their shape is cut off'}" if wide > 1.4 else ""
    return size, (note + crop,) if usual != min(size) or crop else ()


def _host(
    given: tuple[str, dict[str, Any]] | None,
    size: tuple[int, int],
    patch: int | None,
    *,
    small: bool,
    pretrained: bool,
) -> tuple[HostSettings, tuple[str, ...]]:
    from timm.models import get_pretrained_cfg

    name, arguments = given or _default_host(small, size)
    config: Any = get_pretrained_cfg(name)
    usual = tuple(config.input_size[-2:]) if config is not None else (224, 224)
    if size != usual and _takes_size(name):
        arguments.setdefault("img_size", size[0] if size[0] == size[1] else size)
    if patch or (_takes_patch(name) and min(size) < 160 and not pretrained):
        arguments.setdefault("patch_size", patch or fitting_patch(min(size), gcd(*size)))
    if small:
        arguments = {**SMALL, **arguments} if given is None else arguments
    step = arguments.get("patch_size")
    if isinstance(step, int) and any(side % step for side in size):
        shown = f"{size[0]}" if size[0] == size[1] else f"{size[0]}x{size[1]}"
        raise GlocalError(f"images of {shown} pixels cannot be cut into patches of {step}. Use --size or --patch.")
    grid = [side // step for side in size] if isinstance(step, int) and step else [FEW]
    few = (few_patches(*grid),) if min(grid) < FEW else ()
    return HostSettings(name, pretrained, arguments), few


def few_patches(height: int, width: int) -> str:
    """Warn of a lattice that a kernel sees all at once."""
    return f"the lattice is only {height}x{width} patches; local kernels see all of it at once. Try a larger --size."


def fitting_patch(size: int, of: int | None = None) -> int:
    """Choose a patch so that a side has about 8 patches, 14 for large images, and so that it parts `of` evenly."""
    wanted = 4 if size <= 8 else 8 if size <= 96 else 14
    divisors = [each for each in range(1, size + 1) if (of or size) % each == 0]
    return min(divisors, key=lambda each: (abs(size // each - wanted), each))


def _default_host(small: bool, size: tuple[int, int]) -> tuple[str, dict[str, Any]]:
    if small or torch.cuda.is_available():
        return ("vit_tiny_patch16_224" if small else "deit_tiny_patch16_224"), {}
    return "vit_tiny_patch16_224", dict(MIDDLE)


def _takes_patch(name: str) -> bool:
    return bool(re.match(r"(vit|deit|deit3|beit|eva|cait)_", name))  # timm's Mixers have the patch in their name


def _takes_size(name: str) -> bool:
    """Tell whether a host is built for one image size; others take any."""
    from timm import create_model

    try:
        with torch.device("meta"):
            create_model(name, img_size=64)
    except TypeError:
        return False
    except Exception:  # it does not like this very size
        return True
    return True


def _read_host(text: str) -> tuple[str, dict[str, Any]]:
    """Read `name` or `name(option=value, ...)`."""
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return name, {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise GlocalError(
            f"host {text!r} is not understood. Write name(option=value), such as "
            f"vit_tiny_patch16_224(depth=6,embed_dim=96)."
        ) from None


def _power(most: int) -> int:
    power = 2
    while power * 2 <= most:
        power *= 2
    return power
