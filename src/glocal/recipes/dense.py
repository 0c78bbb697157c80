"""Put detection and segmentation runs together: data, a host with its mechanisms, a head, a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from glocal.data.dense import Boxed, DensePair
from glocal.data.dense_feed import DenseFeed
from glocal.data.detection import load_detection
from glocal.data.images import few
from glocal.data.segmentation import load_segmentation
from glocal.errors import GlocalError
from glocal.heads.build import head, put_on
from glocal.heads.pyramid import Maps, spared
from glocal.heads.weights import host_weights
from glocal.mechanisms import ContextBroadcast
from glocal.recipes.build import line, misfit, ordered
from glocal.train.settings import HeadSettings, MixSettings, Recipe
from glocal.train.tasks.detect import Detect
from glocal.train.tasks.segment import Segment
from glocal.zoo import create_model

DENSE = ("detect", "segment")


def open_dense(recipe: Recipe) -> DensePair:
    """Open the recipe's images with their boxes or label maps, and check that the head can learn from them."""
    chosen = refuse_unfit(recipe)
    pair = load_detection(recipe.data, recipe.seed) if recipe.task == "detect" else load_segmentation(recipe.data)
    if recipe.data.limit:
        pair = replace(pair, train=replace(pair.train, samples=pair.train.samples[: recipe.data.limit]))
    if len(pair.train.classes) != len(pair.val.classes):
        raise GlocalError(
            f"the training images have {len(pair.train.classes)} classes, the validation images "
            f"{len(pair.val.classes)}. Name them in data.dense.classes."
        )
    if chosen.name == "mask_rcnn":
        lacking = [s.image.name for s in pair.train.samples if isinstance(s, Boxed) and len(s.outlines) != len(s.boxes)]
        if lacking:
            raise GlocalError(
                f"mask_rcnn learns masks, but {len(lacking)} images have none, such as {lacking[0]}. "
                f"Use COCO's JSON with outlines, or the head retinanet."
            )
    return pair


def refuse_unfit(recipe: Recipe) -> HeadSettings:
    """Refuse settings that the task does not know, and give the head."""
    dense = recipe.data.dense
    if recipe.mix != MixSettings() or recipe.distill is not None:
        raise GlocalError(f"mix and distill are for task classify; {recipe.task} knows neither. Leave them out.")
    if recipe.task == "segment" and dense.fit == "shorter":
        raise GlocalError("data.dense.fit 'shorter' gives images of many sizes; segmentation trains on 'crop'.")
    if recipe.task == "detect" and dense.eval_fit == "slide":
        raise GlocalError("data.dense.eval_fit 'slide' is for label maps; detectors take 'square' or 'shorter'.")
    return chosen_head(recipe)


def build_dense(recipe: Recipe, classes: int) -> nn.Module:
    """Make the host, graft the mechanisms, and put the head on."""
    chosen = chosen_head(recipe)
    found = head(chosen.name, recipe.task)
    mechanisms = recipe.mechanisms
    if found.spares and not chosen.keep_context and any(isinstance(each, ContextBroadcast) for each in mechanisms):
        with torch.device("meta"):
            plain = create_model(recipe.host.name, **_arguments(recipe))
        mechanisms = spared(plain, mechanisms)
    make = {"preserve": recipe.preserve, "pretrained": recipe.host.pretrained}
    try:
        host = create_model(recipe.host.name, *mechanisms, **make, **_arguments(recipe))
    except TypeError as error:
        raise GlocalError(f"{recipe.host.name} does not take these arguments: {error}.") from None
    if chosen.backbone is not None:
        host_weights(host, Path(chosen.backbone))
    try:
        model = put_on(host, chosen.name, classes, **chosen.options)
    except (AssertionError, RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        given = ", ".join(f"{key}={value}" for key, value in chosen.options.items()) or "no options"
        raise GlocalError(
            f"head {chosen.name} cannot be put on {recipe.host.name} with {given}: {line(error)}. Change head.options."
        ) from error
    for each in model.modules():
        if isinstance(each, Maps):
            each.lr_scale = {"host": chosen.host_lr}
    return model


def built_dense(recipe: Recipe, classes: int) -> nn.Module:
    """Make the model, or say that the host cannot be built."""
    try:
        return build_dense(recipe, classes)
    except (AssertionError, RuntimeError, ValueError, ArithmeticError) as error:
        raise misfit(recipe, error) from error


def dense_size(recipe: Recipe) -> tuple[int, int]:
    """Tell the size images are brought to, or windows have."""
    size: Any = recipe.data.size or recipe.host.arguments.get("img_size") or 512
    return (size, size) if isinstance(size, int) else tuple(size)


def dense_task(
    recipe: Recipe, pair: DensePair, accelerator: Accelerator, warn: Any, *, training: bool = True
) -> Detect | Segment:
    """Put data and task together."""
    order = ordered(recipe, len(pair.train) * recipe.data.dense.passes, accelerator)
    name = chosen_head(recipe).name
    if training and name == "upernet" and order.batch // (order.world * order.accumulate) < 2:
        raise GlocalError("UperNet normalises over the images of a batch: give each process 2 or more at a time.")
    if (
        training
        and recipe.task == "detect"
        and not any(len(s.boxes) for s in pair.train.samples if isinstance(s, Boxed))
    ):
        raise GlocalError(
            f"no training image of {recipe.data.name} holds an object of class {few(pair.train.classes)}. "
            f"Mend data.dense.classes, or the boxes."
        )
    feed = DenseFeed(pair, recipe.data, order, accelerator.device, dense_size(recipe), name == "mask_rcnn")
    feed.skipped.tell = warn
    return (Detect if recipe.task == "detect" else Segment)(feed, len(pair.train.classes))


def chosen_head(recipe: Recipe) -> HeadSettings:
    """Give the recipe's head, which must be one for its task."""
    if recipe.head is None:
        default = "retinanet" if recipe.task == "detect" else "linear"
        raise GlocalError(f"task {recipe.task} needs a head, such as `head: {{name: {default}}}`.")
    head(recipe.head.name, recipe.task)
    return recipe.head


def _arguments(recipe: Recipe) -> dict[str, Any]:
    """Give the host's arguments; where all images have one size, it is built for that size."""
    arguments: dict[str, Any] = {**recipe.host.arguments, "num_classes": 0}
    if recipe.data.size is None or "img_size" in arguments:
        return arguments
    sized: dict[str, Any] = arguments | {"img_size": dense_size(recipe)}
    try:
        with torch.device("meta"):
            create_model(recipe.host.name, **sized)
    except TypeError:  # a host that takes any size has no such argument
        return arguments
    return sized
