"""Visual question answering: each answer is scored by itself, as people's answers are.

Kim et al., "ViLT: Vision-and-Language Transformer Without Convolution or Region Supervision".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.data.question_feed import QuestionBatch, QuestionFeed
from glocal.measure.answers import AnswerTally


class Answer:
    """Learns to answer questions about images."""

    best = "vqa"

    def __init__(self, feed: QuestionFeed) -> None:
        self.feed = feed
        self.steps = feed.order.steps
        self.images = feed.order.batch

    def batches(self, epoch: int, start: int) -> Iterator[list[QuestionBatch]]:
        """Give the batches of each step."""
        return self.feed.train(epoch, start)

    def loss(self, model: nn.Module, batch: QuestionBatch, key: int) -> Tensor:
        """Compare each answer's chance with its score, and add up over the answers as ViLT does.

        The order of the patches, which ViLT draws, comes from the seeded global generator.
        """
        inputs, wanted, _ = batch
        told: Tensor = model(**inputs).logits
        return F.binary_cross_entropy_with_logits(told.float(), wanted, reduction="sum") / len(wanted)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, reduce: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Score the answers to the validation questions, each once over all processes."""
        tally = AnswerTally(next(model.parameters()).device)  # a process may have no question of its own
        with same_patches():
            for inputs, wanted, kinds in self.feed.val():
                tally.add(model(**inputs).logits.float(), wanted, kinds)
        return tally.reduced(reduce).figures()


@contextmanager
def same_patches() -> Iterator[None]:
    """Let ViLT draw its patches in the same order each time, and leave the generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would reach the GPUs' generators too
        yield
