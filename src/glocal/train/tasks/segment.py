"""Segmentation: the class of every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.data.dense_feed import DenseBatch, DenseFeed
from glocal.heads.inference import slide, whole
from glocal.measure.segmentation import PixelTally

AUXILIARY = 0.4  # share of an auxiliary head's loss, as usual for UperNet


class Segment:
    """Learns to name the class of every pixel."""

    best = "miou"

    def __init__(self, feed: DenseFeed, classes: int) -> None:
        self.feed, self.classes = feed, classes
        self.ignore = feed.pair.train.ignore
        self.steps = feed.order.steps
        self.images = feed.order.batch
        self.window = feed.size if feed.settings.dense.eval_fit == "slide" else None

    def batches(self, epoch: int, start: int) -> Iterator[list[DenseBatch]]:
        """Give the batches of each step."""
        return self.feed.train(epoch, start)

    def loss(self, model: nn.Module, batch: DenseBatch, key: int) -> Tensor:
        """Compare the answer with the label maps; an auxiliary answer counts for less."""
        images, targets = batch
        labels = torch.stack([each["labels"] for each in targets])
        answer = model(torch.stack(images))
        if isinstance(answer, tuple):
            return self._compare(answer[0], labels) + AUXILIARY * self._compare(answer[1], labels)
        return self._compare(answer, labels)

    def _compare(self, scores: Tensor, labels: Tensor) -> Tensor:
        total = F.cross_entropy(scores.float(), labels, ignore_index=self.ignore, reduction="sum")
        return total / (labels != self.ignore).sum().clamp(min=1)  # a batch may hold nothing but ignored pixels

    @torch.no_grad()
    def evaluate(self, model: nn.Module, reduce: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Count the pixels of the validation images at their own size, each once over all processes."""
        tally: PixelTally | None = None
        for images, targets in self.feed.val():
            tally = tally or PixelTally(self.classes, self.ignore, images[0].device)
            for scores, target in zip(label_scores(model, images, self.window), targets, strict=True):
                tally.add(at_size(scores, target["size"]).argmax(0), target["labels"])
        assert tally is not None
        return tally.reduced(reduce).figures()


def label_scores(model: nn.Module, images: list[Tensor], window: tuple[int, int] | None) -> list[Tensor]:
    """Give each image's (classes, H, W) scores, by windows where a window is given."""
    return whole(model, images) if window is None else [slide(model, image, window) for image in images]


def at_size(scores: Tensor, size: tuple[int, int]) -> Tensor:
    """Bring (classes, h, w) scores to an image's own size."""
    return F.interpolate(scores[None], size, mode="bilinear")[0]
