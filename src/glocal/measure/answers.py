"""How well questions are answered: VQA's accuracy, over all and by kind of question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glocal.data.questions import KINDS
from glocal.errors import GlocalError


class AnswerTally:
    """Adds up the scores of the answers given."""

    def __init__(self, device: torch.device) -> None:
        self.earned = torch.zeros(len(KINDS), dtype=torch.float64, device=device)
        self.asked = torch.zeros(len(KINDS), dtype=torch.long, device=device)

    def add(self, told: Tensor, wanted: Tensor, kinds: Tensor) -> None:
        """Take in (B, answers) scores told, scores that the answers deserve, and the (B,) kinds of the questions."""
        earned = wanted.gather(1, told.argmax(dim=1, keepdim=True))[:, 0]
        self.earned.index_add_(0, kinds, earned.double())
        self.asked.index_add_(0, kinds, torch.ones_like(kinds))

    def reduced(self, reduce: Callable[[Tensor], Tensor]) -> AnswerTally:
        """Sum over all processes."""
        self.earned, self.asked = reduce(self.earned), reduce(self.asked)
        return self

    def figures(self) -> dict[str, Any]:
        """Give accuracies in percent; a kind that is not asked about is left out."""
        earned, asked = self.earned.tolist(), self.asked.tolist()
        if not sum(asked):
            raise GlocalError("none of the validation images can be read. Are they whole?")
        figures: dict[str, Any] = {"vqa": 100 * sum(earned) / sum(asked), "questions": sum(asked)}
        for kind, points, count in zip(KINDS, earned, asked, strict=True):
            if count:
                figures[kind.replace("/", "_")] = 100 * points / count
        return figures
