"""Detection: boxes, and masks where the head finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.data.dense_feed import DenseBatch, DenseFeed
from glocal.measure.detection import BoxTally


class Detect:
    """Learns to find the objects in an image."""

    best = "ap"

    def __init__(self, feed: DenseFeed, classes: int) -> None:
        self.feed, self.classes = feed, classes
        self.steps = feed.order.steps
        self.images = feed.order.batch

    def batches(self, epoch: int, start: int) -> Iterator[list[DenseBatch]]:
        """Give the batches of each step."""
        return self.feed.train(epoch, start)

    def loss(self, model: nn.Module, batch: DenseBatch, key: int) -> Tensor:
        """Add up the head's losses; what it samples, such as proposals, comes from the seeded global generator."""
        losses: dict[str, Tensor] = model(*batch)
        return torch.stack([each.float() for each in losses.values()]).sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, reduce: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Measure average precision over the validation images of all processes."""
        tally = BoxTally(self.classes, self.feed.masks)
        for images, targets in self.feed.val():
            pairs = zip(model(images), images, targets, strict=True)
            found = [to_size(answer, image, target["size"]) for answer, image, target in pairs]
            tally.add(found, targets)
        tally.found, tally.wanted = gather_object(tally.found), gather_object(tally.wanted)
        return tally.figures()


def to_size(answer: dict[str, Tensor], image: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
    """Bring detections on a resized image back to the size it had."""
    height, width = image.shape[-2:]
    scale = answer["boxes"].new_tensor((size[1] / width, size[0] / height) * 2, dtype=torch.float32)
    moved = answer | {"boxes": answer["boxes"].float() * scale, "scores": answer["scores"].float()}
    if "masks" in answer and tuple(answer["masks"].shape[-2:]) != tuple(size):
        masks = answer["masks"].float()
        moved["masks"] = F.interpolate(masks, size, mode="bilinear") if len(masks) else masks.new_zeros(0, 1, *size)
    return moved
