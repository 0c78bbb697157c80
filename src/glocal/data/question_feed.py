"""Batches of images with questions: of any epoch, from any step on, always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glocal.data.images import UNREADABLE
from glocal.data.order import Order
from glocal.data.questions import QuestionPair, Questions
from glocal.data.reading import Job, Skipped, drawing_from, in_steps, read, training_jobs, validation_jobs
from glocal.data.settings import Augment, DataSettings
from glocal.data.sight import Sight, gather, normalised, see

Words = Callable[[str], list[int]]  # the numbers of a question's words
QuestionBatch = tuple[dict[str, Tensor], Tensor, Tensor]
"""What the host takes, the (B, answers) scores wanted, and the (B,) kinds of the questions."""


@dataclass
class QuestionFeed:
    """Batches read by worker processes, drawn anew from (seed, epoch, question) for each question's image."""

    pair: QuestionPair
    settings: DataSettings
    order: Order
    device: torch.device
    sight: Sight
    words: Words

    def __post_init__(self) -> None:
        self.skipped = Skipped(self.settings.unreadable)

    def train(self, epoch: int, start: int = 0) -> Iterator[list[QuestionBatch]]:
        """Give each step's batches, one per accumulation part."""
        change = changes(self.settings.augment, self.sight, self.pair.train.mean)
        reader = _Reader(self.pair.train, self.sight, change, self.words, training=True)
        yield from in_steps(self._load(reader, training_jobs(self.order, epoch, start)), self.order.accumulate)

    def val(self) -> Iterator[QuestionBatch]:
        """Give this process's share of the validation questions; those of unreadable images are left out."""
        size = self.settings.eval_batch_size or self.settings.batch_size
        reader = _Reader(self.pair.val, self.sight, [], self.words, training=False)
        yield from self._load(reader, validation_jobs(self.order, len(self.pair.val), size))

    def _load(self, reader: _Reader, jobs: list[list[Job]]) -> Iterator[QuestionBatch]:
        pin = self.device.type == "cuda"
        for read_in, broken in read(reader, jobs, reader.collate, self.settings.workers, pin=pin):
            self.skipped.add(broken)
            if read_in is not None:
                inputs, (row, answer, score), kinds = read_in
                moved = {key: each.to(self.device, non_blocking=pin) for key, each in inputs.items()}
                wanted = torch.zeros(len(kinds), len(reader.questions.classes))
                wanted[row, answer] = score
                inputs = normalised(moved, reader.questions.mean, reader.questions.std)
                yield inputs, wanted.to(self.device), kinds.to(self.device)


def changes(settings: Augment, sight: Sight, mean: tuple[float, ...]) -> list[Any]:
    """Write a run's augmentation as changes of one image; colours are never inverted, for they are asked about."""
    from timm.data.auto_augment import rand_augment_transform
    from torchvision import transforms

    steps: list[Any] = []
    if settings.rand:
        grey = tuple(round(255 * each) for each in mean)
        shift = int(0.45 * (sight.size if isinstance(sight.size, int) else min(sight.size)))
        drawn: Any = rand_augment_transform(settings.rand, {"translate_const": shift, "img_mean": grey})
        kept = [i for i, each in enumerate(drawn.ops) if each.name != "Invert"]
        drawn.ops = [drawn.ops[i] for i in kept]
        if drawn.choice_weights is not None:
            drawn.choice_weights = drawn.choice_weights[kept] / drawn.choice_weights[kept].sum()
        steps.append(drawn)
    elif settings.jitter:
        steps.append(transforms.ColorJitter(*(settings.jitter,) * 3))
    return [*steps, *([transforms.RandomHorizontalFlip(settings.flip)] if settings.flip else [])]


@dataclass
class _Reader:
    """Reads one question by (index, key); where its image cannot be read, another training question takes its place."""

    questions: Questions
    sight: Sight
    change: list[Any]
    words: Words
    training: bool

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, job: Job) -> tuple[Any, list[str]]:
        index, key = job
        broken: list[str] = []
        for _ in range(20):
            sample = self.questions.samples[index]
            try:
                image = see(sample.image)
            except UNREADABLE:
                broken.append(sample.image.name)
                if not self.training:
                    break
                index = (index + 1) % len(self.questions)
                continue
            with drawing_from(key):
                for step in self.change:
                    image = step(image)
            return (self.sight(image), self.words(sample.text), sample), broken
        return None, broken

    def collate(self, items: list[tuple[Any, list[str]]]) -> tuple[Any, list[str]]:
        """Keep what could be read, and gather the names of the rest."""
        broken = [name for _, names in items for name in names]
        whole = [item for item, _ in items if item is not None]
        if not whole:
            return None, broken
        images, words, samples = (list(each) for each in zip(*whole, strict=True))
        pairs = [(row, *pair) for row, sample in enumerate(samples) for pair in sample.answers]
        row, answer = (torch.tensor([pair[i] for pair in pairs], dtype=torch.long) for i in (0, 1))
        score = torch.tensor([pair[2] for pair in pairs], dtype=torch.float32)
        kinds = torch.tensor([sample.kind for sample in samples])
        return (gather(images, words), (row, answer, score), kinds), broken
