"""Put runs that answer questions together: data, ViLT with its mechanisms, a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from PIL import Image
from torch import nn

from glocal.data.question_feed import QuestionFeed
from glocal.data.questions import QuestionPair
from glocal.data.sight import gather, normalised
from glocal.data.vqa import folder, load_vqa
from glocal.enhance import enhance
from glocal.errors import GlocalError
from glocal.recipes.build import line, ordered
from glocal.recipes.vilt import Opened, build_host, open_host
from glocal.train.settings import HeadSettings, MixSettings, Recipe
from glocal.train.tasks.answer import Answer


@dataclass(frozen=True)
class Asking:
    """A set of questions, and the host that is to answer them."""

    pair: QuestionPair
    host: Opened


def open_answer(recipe: Recipe) -> Asking:
    """Open the host's words and the recipe's questions; what is quickly found wrong is told first."""
    refuse_unfit(recipe)
    folder(recipe.data)  # before a hub is asked, which may take its time
    host = open_host(recipe.host)
    return Asking(load_vqa(recipe.data, recipe.seed), host)


def refuse_unfit(recipe: Recipe) -> None:
    """Refuse settings that the task does not know."""
    if recipe.mix != MixSettings() or recipe.distill is not None:
        raise GlocalError("mix and distill are for task classify; answer knows neither. Leave them out.")
    if recipe.head is not None and recipe.head != HeadSettings("mlp", host_lr=recipe.head.host_lr):
        raise GlocalError(
            f"task answer has the head of its host, so of head it takes `{{name: mlp, host_lr: 0.1}}` alone; "
            f"the recipe asks for {recipe.head.name}, or options that this head has not."
        )
    chosen = recipe.data.augment
    if chosen.crop != "none" or chosen.erase:
        raise GlocalError(
            "data.augment's crop and erase hide what may be asked about. Task answer takes rand, jitter and flip of it."
        )
    if recipe.compile:
        raise GlocalError("compile does not go with task answer: ViLT looks for its patches as it runs. Leave it out.")


def build_answer(recipe: Recipe, host: Opened, classes: tuple[str, ...]) -> nn.Module:
    """Make the host and graft the mechanisms, and try both on an empty image with an empty question."""
    model = build_host(host, classes)
    if recipe.mechanisms:
        model = enhance(model, *recipe.mechanisms, inplace=True, preserve=recipe.preserve)
    if recipe.head is not None:
        model.lr_scale = {"vilt": recipe.head.host_lr}  # pyright: ignore[reportArgumentType]
    _try_on(model, recipe, host)
    return model


def answer_task(
    recipe: Recipe, host: Opened, pair: QuestionPair, accelerator: Accelerator, warn: Callable[[str], None]
) -> Answer:
    """Put data and task together."""
    order = ordered(recipe, len(pair.train), accelerator)
    feed = QuestionFeed(pair, recipe.data, order, accelerator.device, host.sight(recipe.data), host.words)
    feed.skipped.tell = warn
    return Answer(feed)


def _try_on(model: nn.Module, recipe: Recipe, host: Opened) -> None:
    before, sight = model.training, host.sight(recipe.data)
    inputs = gather([sight(Image.new("RGB", (640, 480)))], [host.words("")])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(**normalised(inputs, (0.5,) * 3, (0.5,) * 3))
    except Exception as error:  # hosts check their input in many ways, or not at all
        height, width = inputs["pixel_values"].shape[-2:]
        raise GlocalError(
            f"{recipe.host.name} cannot take a question with an image of {height}x{width} pixels: {line(error)}. "
            f"Mend data.size, or the host's image_size or patch_size."
        ) from error
    finally:
        model.train(before)
