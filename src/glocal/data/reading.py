"""Reading by worker processes: which images make up which batch, and what becomes of those that cannot be read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from glocal.data.chance import keys
from glocal.data.decode import refuse_many
from glocal.data.order import Order

Batch = TypeVar("Batch")
Job = tuple[int, int]  # an image, and the key of what is drawn for it


def training_jobs(order: Order, epoch: int, start: int) -> list[list[Job]]:
    """List an epoch's batches from a step on, one for each accumulation part."""
    listed = order.epoch(epoch)
    jobs: list[list[Job]] = []
    for step in range(start, order.steps):
        for part in range(order.accumulate):
            index, copy = order.part(listed, step, part)
            jobs.append(list(zip(index.tolist(), keys(order.seed, epoch, index, copy).tolist(), strict=True)))
    return jobs


def validation_jobs(order: Order, images: int, batch: int) -> list[list[Job]]:
    """List this process's share of the validation images; the shares of all processes hold each image once."""
    share = range(order.rank, images, order.world)
    return [[(index, 0) for index in share[start : start + batch]] for start in range(0, len(share), batch)]


def read(reader: Any, jobs: list[list[Job]], collate: Callable[..., Any], workers: int, *, pin: bool = False) -> Any:
    """Let workers read the jobs with `reader[job]`, and collate each batch."""
    return torch.utils.data.DataLoader(
        reader,
        batch_sampler=jobs,
        num_workers=min(workers, len(jobs)),
        collate_fn=collate,
        pin_memory=pin,
        generator=torch.Generator(),  # the loader's own draw must not disturb what dropout and heads draw
    )


def in_steps(batches: Iterable[Batch], parts: int) -> Iterator[list[Batch]]:
    """Gather the parts of each step."""
    step: list[Batch] = []
    for batch in batches:
        step.append(batch)
        if len(step) == parts:
            yield step
            step = []


class Skipped:
    """Counts the images that cannot be read, tells of new ones, and stops at the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.names: set[str] = set()
        self.tell: Callable[[str], None] = lambda text: None

    def add(self, names: list[str]) -> None:
        """Take note of some more, known or not."""
        new = sorted(set(names) - self.names)
        if new:
            self.names.update(new)
            refuse_many(sorted(self.names), self.limit)
            self.tell(refuse_many(new, len(new)))


class drawing_from:  # a statement more than a thing
    """Draw from one image's key for a while, in every generator that timm's and torchvision's transforms use."""

    def __init__(self, key: int) -> None:
        self.seed = key & 0x7FFFFFFF

    def __enter__(self) -> None:
        self.before = (random.getstate(), np.random.get_state(), torch.get_rng_state())
        random.seed(self.seed)
        np.random.seed(self.seed)
        torch.manual_seed(self.seed)

    def __exit__(self, *_: object) -> None:
        random.setstate(self.before[0])
        np.random.set_state(self.before[1])
        torch.set_rng_state(self.before[2])
