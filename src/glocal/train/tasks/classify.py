"""Classification: mixing, smoothing, distillation, and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from timm.data.mixup import Mixup
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import Tensor, nn

from glocal.data.feed import Batch, Feed
from glocal.data.order import Order
from glocal.errors import GlocalError
from glocal.measure.accuracy import Tally
from glocal.train.settings import MixSettings, Recipe
from glocal.train.tasks.distill import Teacher


class Classify:
    """Learns to name the class of an image."""

    best = "top1"

    def __init__(self, recipe: Recipe, feed: Feed, classes: int, teacher: Teacher | None = None) -> None:
        self.feed, self.classes, self.teacher = feed, classes, teacher
        self.steps = feed.order.steps
        self.images = feed.order.batch
        self.mixup = _mixup(recipe.mix, classes)
        if self.mixup is not None:
            _refuse_odd(feed.order)
        self.criterion = _criterion(recipe.mix, self.mixup is not None)

    def batches(self, epoch: int, start: int) -> Iterator[list[Batch]]:
        """Give the batches of each step."""
        return self.feed.train(epoch, start)

    def loss(self, model: nn.Module, batch: Batch, key: int) -> Tensor:
        """Mix the batch and compare the model's answer with the labels, and with the teacher's where there is one."""
        images, labels = batch
        target: Tensor = labels
        if self.mixup is not None:
            images, target = _mixed(self.mixup, images, labels, key)
        answer = model(images)
        if self.teacher is not None:
            return self.teacher.loss(self.criterion, answer, images, target)
        return self.criterion(answer, target)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, reduce: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Count the validation images that are named rightly, each once over all processes."""
        tally = Tally(self.classes, next(model.parameters()).device)  # a process may have no image of its own
        for images, labels in self.feed.val():
            tally.add(model(images).float(), labels)
        figures = tally.reduced(reduce).figures()
        if not figures["images"]:
            raise GlocalError("none of the validation images can be read. Are they whole?")
        return figures


def _mixup(mix: MixSettings, classes: int) -> Mixup | None:
    if not (mix.mixup or mix.cutmix):
        return None
    return Mixup(
        mix.mixup,
        mix.cutmix,
        prob=mix.prob,
        switch_prob=mix.switch_prob,
        label_smoothing=mix.smoothing,
        num_classes=classes,
    )


def _refuse_odd(order: Order) -> None:
    parts = order.world * order.accumulate
    if order.batch // parts % 2:
        raise GlocalError(
            f"mixing pairs images, but of a batch of {order.batch} each of {order.world} processes gets "
            f"{order.batch // parts} at a time. Give a data.batch_size that is a multiple of {2 * parts}."
        )


def _mixed(mixup: Mixup, images: Tensor, labels: Tensor, key: int) -> tuple[Tensor, Tensor]:
    before = np.random.get_state()
    np.random.seed(key)  # timm's mixing draws from numpy's global generator
    try:
        return mixup(images, labels)
    finally:
        np.random.set_state(before)


def _criterion(mix: MixSettings, mixed: bool) -> nn.Module:
    if mixed:
        return SoftTargetCrossEntropy()
    return LabelSmoothingCrossEntropy(mix.smoothing) if mix.smoothing else nn.CrossEntropyLoss()
