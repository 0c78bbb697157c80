"""What is learned: one file per task, each with batches, a loss and an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class Task(Protocol):
    """What the loop asks of a task."""

    steps: int
    """Optimiser steps per epoch."""
    images: int
    """Images per optimiser step, over all processes."""
    best: str
    """The figure of `evaluate` that decides which checkpoint is best; more is better."""

    def batches(self, epoch: int, start: int) -> Iterator[list[Any]]:
        """Give the batches of each step of an epoch from a step on, one per accumulation part."""
        ...

    def loss(self, model: nn.Module, batch: Any, key: int) -> Tensor:
        """Compute the loss of one batch; what it draws at random comes from `key`."""
        ...

    def evaluate(self, model: nn.Module, reduce: Any) -> dict[str, Any]:
        """Measure the model on the validation part; `reduce` sums a tensor over all processes."""
        ...
