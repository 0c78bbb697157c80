"""Questions about images: what a run says of them, and how they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glocal.data.check import Check

KINDS = ("yes/no", "number", "other")


@dataclass(frozen=True)
class Vqa:
    """Which answers are learned, and how images are brought to size."""

    least: int = 9
    """How many training questions must have an answer for it to be learned."""
    longest: int | None = None
    """Longest side of an image whose shorter side is `data.size`; 1333/800 of that when not given, as in ViLT."""

    def __post_init__(self) -> None:
        check = Check(self, "data.vqa")
        check.at_least(1, "least", "longest")
        check.done()


@dataclass(frozen=True)
class Question:
    """A question about an image, and the score of each answer that counts for something."""

    image: Path
    text: str
    answers: tuple[tuple[int, float], ...]
    kind: int = KINDS.index("other")
    """Number of its kind, of `KINDS`."""


@dataclass(frozen=True)
class Questions:
    """One part of a set."""

    samples: Sequence[Question]
    classes: tuple[str, ...]
    """The answers that can be given, the commonest first."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # ViLT's own
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, index: int) -> str:
        """Name the image of a question in a message."""
        return self.samples[index].image.name


@dataclass(frozen=True)
class QuestionPair:
    """The two parts of a set."""

    train: Questions
    val: Questions
    notes: tuple[str, ...] = ()
