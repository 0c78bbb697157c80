"""Accuracy where an image may have several labels (Beyer et al., "Are we done with ImageNet?")."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RealTally:
    """Counts an answer right that is any of the image's labels; images without labels count for nothing."""

    def __init__(self, labels: Tensor) -> None:
        """Take the labels of all images: (images, most), -1 where an image has fewer."""
        self.labels = labels
        self.counts = torch.zeros(3, dtype=torch.int64, device=labels.device)  # images, right, right among five

    def add(self, answers: Tensor, places: Tensor) -> None:
        """Count a batch of (B, classes) answers to the images at these places."""
        wanted = self.labels[places]
        likeliest = answers.topk(min(5, answers.shape[1]), dim=1).indices
        right = (likeliest[:, :, None] == wanted[:, None, :]).any(dim=2)  # (B, 5)
        counted = (wanted >= 0).any(dim=1)
        self.counts += torch.stack([each.sum() for each in (counted, right[:, 0], right.any(dim=1))])

    def figures(self) -> dict[str, Any]:
        """Give percentages."""
        images, right, near = self.counts.tolist()
        return {"images": images, "top1": 100 * right / max(images, 1), "top5": 100 * near / max(images, 1)}
