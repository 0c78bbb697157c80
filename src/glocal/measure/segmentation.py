"""How well label maps are told: counts of pixels, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class PixelTally:
    """Counts pixels by true and told class."""

    def __init__(self, classes: int, ignore: int, device: torch.device) -> None:
        self.classes, self.ignore = classes, ignore
        self.confusion = torch.zeros(classes, classes, dtype=torch.long, device=device)
        self.images = torch.zeros((), dtype=torch.long, device=device)

    def add(self, told: Tensor, labels: Tensor) -> None:
        """Take in one image: (H, W) classes told, and its label map."""
        counted = (labels != self.ignore).flatten()
        joint = (labels * self.classes + told).flatten().where(counted, 0)
        # Not bincount of what is counted: a GPU waits for both, once an image.
        self.confusion.view(-1).index_add_(0, joint, counted.long())
        self.images += 1

    def reduced(self, reduce: Callable[[Tensor], Tensor]) -> PixelTally:
        """Sum over all processes."""
        self.confusion, self.images = reduce(self.confusion), reduce(self.images)
        return self

    def figures(self) -> dict[str, Any]:
        """Give mIoU and accuracies in percent; classes that neither occur nor are told do not count."""
        counts = self.confusion.double().cpu()
        right, true, told = counts.diag(), counts.sum(1), counts.sum(0)
        union = true + told - right
        shares = 100 * right / union
        occurs = true > 0
        return {
            "miou": float(shares[union > 0].mean()) if bool((union > 0).any()) else 0.0,
            "accuracy": float(100 * right.sum() / true.sum().clamp(min=1)),
            "mean_accuracy": float((100 * right / true)[occurs].mean()) if bool(occurs.any()) else 0.0,
            "per_class": [None if share != share else share for share in shares.tolist()],
            "images": int(self.images),
        }
