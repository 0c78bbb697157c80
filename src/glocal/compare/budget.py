"""A time budget: what runs will take, how many epochs fit, and when time is up."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from glocal.data.dense import DensePair
from glocal.data.images import MemoryImages, Pair
from glocal.errors import GlocalError
from glocal.recipes.run import accelerate, prepare
from glocal.train.loop import Loop
from glocal.train.screen import Screen, Silent, clock
from glocal.train.settings import Recipe

MOST_EPOCHS = 300
_UNITS = {"s": 1, "m": 60, "h": 3600}
_WARM, _STEPS = 2, 10  # steps thrown away, and steps in all


def seconds(text: str) -> float:
    """Read a duration: 90s, 10m, 2h, 1h30m."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if not parts or "".join(a + b for a, b in parts) != text.strip():
        raise GlocalError(f"budget {text!r} is not understood. Write 90s, 10m, 2h or 1h30m.")
    total = sum(float(count) * _UNITS[unit] for count, unit in parts)
    if not total:
        raise GlocalError(f"budget {text!r} is no time at all. Write 90s, 10m, 2h or 1h30m.")
    return total


@dataclass(frozen=True)
class Pace:
    """What a run takes, in seconds: to be started and saved once, and for one epoch."""

    start: float
    epoch: float


@dataclass(frozen=True)
class Timing:
    """A few real steps of one variant, to learn its pace."""

    title: str
    recipe: Recipe
    most: float
    """Seconds after which no further step is taken."""

    def do(self, pair: Pair | DensePair, show: Screen) -> Pace:
        """Take the steps, loading included; the first ones warm up."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            loop = prepare(self.recipe, pair, accelerate(self.recipe, Path(folder)), Path(folder), Silent())
            built = time.monotonic() - began
            marks = [time.monotonic()]
            for parts in _batches(loop):
                loop._update(0, parts)
                float(loop.running)  # waits for a GPU
                marks.append(time.monotonic())
                if len(marks) > (_STEPS if marks[-1] - began < self.most else _WARM + 1) or self._over(began):
                    break
            steady = marks[min(_WARM, len(marks) - 2) :]
            step = (steady[-1] - steady[0]) / (len(steady) - 1)
            loop.save("last.pt")
            saved = time.monotonic() - steady[-1]
        # A forward pass is a third of a step; where files are read, reading takes its time in both.
        share = 1 / 3 if isinstance(pair.train, MemoryImages) else 1.0
        evaluation = ceil(len(pair.val) / self.recipe.data.batch_size) * step * share
        return Pace(built + 2 * saved, loop.task.steps * step + evaluation + saved)

    def _over(self, began: float) -> bool:
        return time.monotonic() - began > 3 * self.most


def _batches(loop: Loop) -> Iterator[list[Any]]:
    epoch = 0
    while True:
        yield from loop.task.batches(epoch, 0)
        epoch += 1


@dataclass(frozen=True)
class Forecast:
    """What all runs together will take."""

    paces: tuple[Pace, ...]
    """One for each run, in their order."""
    workers: int

    def seconds(self, epochs: int, rounds: int) -> float:
        """Tell what so many epochs of every run take, in so many rounds."""
        return rounds * self._side_by_side([each.start + each.epoch * epochs / rounds for each in self.paces])

    def _side_by_side(self, times: Sequence[float]) -> float:
        ends = [0.0] * self.workers
        for each in times:
            ends[ends.index(min(ends))] += each
        return max(ends)


class Clock:
    """Runs from when the comparison began, whatever parts it was done in."""

    def __init__(self, budget: float | None, began: float, before: float = 0.0) -> None:
        self.budget, self.began, self.before = budget, began, before
        self.closing = 0.0
        """Seconds kept for what comes after the runs."""

    @property
    def spent(self) -> float:
        """Seconds used until now."""
        return self.before + time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds that runs may still take."""
        assert self.budget is not None
        return self.budget - self.closing - self.spent

    @property
    def deadline(self) -> float:
        """When runs must stop, by `time.monotonic`."""
        return time.monotonic() + self.left

    def refuse_spent(self) -> None:
        """Raise where nothing is left for the runs of a comparison that is yet to begin."""
        if self.budget is not None and not self.before and self.left <= 0:
            needed = self.spent + self.closing
            raise GlocalError(
                f"a budget of {clock(self.budget)} is too short: to start and to write the report alone takes about "
                f"{clock(needed)} here. Give --budget {clock(4 * needed)} or more."
            )
