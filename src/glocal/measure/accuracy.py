"""Accuracy: one confusion matrix that knows everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Tally:
    """Counts answers on the device, without waiting for it."""

    def __init__(self, classes: int, device: torch.device | str = "cpu") -> None:
        self.classes = classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)  # rows: truth
        self.top5 = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, answers: Tensor, labels: Tensor) -> None:
        """Count a batch of (B, classes) answers."""
        cells = labels * self.classes + answers.argmax(dim=1)
        # Not bincount, for which a GPU waits: it looks for the largest number first.
        self.confusion.view(-1).index_add_(0, cells, torch.ones_like(cells))
        nearest = answers.topk(min(5, self.classes), dim=1).indices
        self.top5 += (nearest == labels[:, None]).any(dim=1).sum()
        self.loss += torch.nn.functional.cross_entropy(answers, labels, reduction="sum").double()

    def reduced(self, reduce: Callable[[Tensor], Tensor]) -> Tally:
        """Sum the counts of all processes."""
        total = Tally(self.classes, self.confusion.device)
        total.confusion, total.top5 = reduce(self.confusion), reduce(self.top5)
        total.loss = reduce(self.loss.float()).double() if self.confusion.device.type == "mps" else reduce(self.loss)
        return total

    def figures(self) -> dict[str, Any]:
        """Give percentages, and the matrix itself."""
        count = int(self.confusion.sum())
        right = self.confusion.diagonal().double()
        per_class = 100 * right / self.confusion.sum(dim=1).clamp(min=1)
        return {
            "images": count,
            "top1": 100 * float(right.sum()) / max(count, 1),
            "top5": 100 * int(self.top5) / max(count, 1),
            "loss": float(self.loss) / max(count, 1),
            "per_class": [round(value, 4) for value in per_class.tolist()],
            "confusion": self.confusion.tolist(),
        }
