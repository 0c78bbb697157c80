"""A comparison within a time: all runs go forward together, in rounds of epochs.

Whatever happens to the time, every run ends with the same epochs and had the same learning rate at every step.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from glocal.compare.budget import MOST_EPOCHS, Clock, Forecast, Timing
from glocal.compare.crew import Crew
from glocal.compare.jobs import Job, progress
from glocal.compare.plan import Plan, cut, with_epochs
from glocal.errors import GlocalError
from glocal.train import checkpoint
from glocal.train.part import Part
from glocal.train.screen import Screen, clock

ROUNDS = 8  # each costs a start of every run
_SURE = 0.9  # share of the time that is planned with: some steps take longer than others


class Rounds:
    """Runs a plan within the clock's budget; a folder that was begun is gone on with."""

    def __init__(self, folder: Path, crew: Crew, watch: Clock, steps: int, show: Screen) -> None:
        self.folder, self.crew, self.clock, self.steps, self.show = folder, crew, watch, steps, show
        self.forecast = Forecast((), 1)
        self.slowest = 1.0

    def fit(self, plan: Plan, *, fixed: bool) -> Plan:
        """Time the variants and choose the epochs, unless they are fixed; a time too short for one each is refused."""
        assert self.clock.budget is not None
        most = 0.1 * self.clock.left / len(plan.variants)
        first = [(variant.name, recipe) for variant, seed, recipe in plan.runs() if seed == plan.seeds[0]]
        paces = self.crew.work([Timing(name, recipe, most) for name, recipe in first], self.show, _quiet, _quiet)
        self.forecast = Forecast(tuple(paces) * len(plan.seeds), self.crew.workers)
        self.clock.closing += self.forecast.seconds(0, 1)
        if fixed:
            return plan
        epochs = self._fitting(0, MOST_EPOCHS, 1.0)
        if not epochs:
            needed = (self.forecast.seconds(1, 1) / _SURE + self.clock.spent + self.clock.closing) * 1.1
            runs = f"{len(plan.variants)} variants x {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}"
            raise GlocalError(
                f"a budget of {clock(self.clock.budget)} is too short: one epoch of {runs} takes about "
                f"{clock(needed)} here, start and report included. Give --budget {clock(ceil(needed))} or more, "
                f"fewer seeds or variants, or smaller images."
            )
        foreseen = self.forecast.seconds(epochs, len(ends(0, epochs)))
        self.show.note(f"{epochs} epochs of {len(paces) * len(plan.seeds)} runs: about {clock(foreseen)} of training")
        return replace(plan, recipe=with_epochs(plan.recipe, epochs))

    def run(self, plan: Plan, jobs: Callable[[Plan], list[Job]], keep: Callable[[Plan], None]) -> Plan:
        """Train every run and return the plan with the epochs they had; `keep` is given each change of it."""
        done = progressed(self.folder)[1]
        while done < plan.recipe.epochs:
            until = ends(done, plan.recipe.epochs)[0]
            slow = self._round(jobs(plan), until)
            if slow is None:
                plan = self._stopped(plan, done)
            else:
                done = until
                fitting = done + self._fitting(done, plan.recipe.epochs, slow)
                if fitting == plan.recipe.epochs:
                    continue
                plan = cut(plan, done, fitting)
            keep(plan)
            self.show.note(plan.warning)
        self._close(jobs(plan), plan.recipe.epochs)
        return plan

    def _round(self, jobs: list[Job], until: int) -> float | None:
        """Bring all runs to an epoch; tell how much slower than foreseen it was, or nothing where time ran out."""
        before = progressed(self.folder)[1]
        part = Part(until, self.clock.deadline)
        parts = [replace(job, resume=True, part=part) for job in jobs if not job.done]
        began = time.monotonic()
        with progress(jobs, self.crew, len(jobs) * jobs[0].recipe.epochs * self.steps, self.show) as tick:
            results = self.crew.work(parts, self.show, _quiet, tick)
        if None in results:
            return None
        taken = time.monotonic() - began
        _mark(self.folder, jobs, until, self.clock)
        of = f"{clock(self.clock.spent)} of {clock(self.clock.budget or 0)}"
        self.show.note(f"epoch {until} of {jobs[0].recipe.epochs} done by all {len(jobs)} runs, {of} used")
        slow = taken / self.forecast.seconds(until - before, 1)
        self.clock.closing *= max(1.0, slow / self.slowest)  # the end will be as slow
        self.slowest = max(self.slowest, slow)
        return slow

    def _fitting(self, done: int, most: int, slow: float) -> int:
        """Tell how many of the epochs to come still fit."""
        allowed = _SURE * self.clock.left / slow
        for total in range(most, done, -1):
            if self.forecast.seconds(total - done, len(ends(done, total))) <= allowed:
                return total - done
        return 0

    def _stopped(self, plan: Plan, done: int) -> Plan:
        if not done:
            raise GlocalError(
                f"the budget of {clock(self.clock.budget or 0)} was over before every run had one epoch: they were "
                f"slower than measured. Go on with --resume and a longer --budget."
            )
        return cut(plan, done, done)

    def _close(self, jobs: list[Job], epochs: int) -> None:
        """Write the results of runs that were to go on, taking back what only some of them did."""
        for job in jobs:
            if job.step > epochs * self.steps:
                _take_back(job, epochs)
        parts = [replace(job, resume=True, part=Part(epochs)) for job in jobs if not job.done]
        self.crew.work(parts, self.show, _quiet, _quiet)
        for job in jobs:
            _forget(job, keep=None)


def ends(done: int, epochs: int) -> list[int]:
    """Tell after which epochs rounds end: the first after one, so that there is soon something to go by."""
    if done >= epochs:
        return []
    stride = max(1, ceil((epochs - 1) / (ROUNDS - 1)))
    first = 1 if not done else min(done + stride, epochs)
    return [first, *ends(first, epochs)]


def progressed(folder: Path) -> tuple[float, int]:
    """Read the seconds a comparison has used before, and the epochs all its runs have done."""
    try:
        read: dict[str, Any] = json.loads((folder / "progress.json").read_text())
        return read["seconds"], read["epochs"]
    except (OSError, ValueError, KeyError):
        return 0.0, 0


def note_progress(folder: Path, watch: Clock, epochs: int) -> None:
    """Keep what `progressed` reads."""
    checkpoint.write_json(folder / "progress.json", {"seconds": round(watch.spent, 3), "epochs": epochs})


def _mark(folder: Path, jobs: list[Job], epochs: int, watch: Clock) -> None:
    """Keep every run's checkpoint of a round under a name of its own, then those before it are not needed."""
    for job in jobs:
        _link(job.folder / "checkpoints" / "last.pt", _marked(job, epochs))
    note_progress(folder, watch, epochs)
    for job in jobs:
        _forget(job, keep=_marked(job, epochs))


def _forget(job: Job, keep: Path | None) -> None:
    for path in (job.folder / "checkpoints").glob("round-*.pt"):
        if path != keep:
            path.unlink()


def _take_back(job: Job, epochs: int) -> None:
    for name in ("metrics.json", "model.safetensors"):
        (job.folder / name).unlink(missing_ok=True)
    _link(_marked(job, epochs), job.folder / "checkpoints" / "last.pt")


def _marked(job: Job, epochs: int) -> Path:
    return job.folder / "checkpoints" / f"round-{epochs:05}.pt"


def _link(source: Path, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)  # checkpoints are replaced, never written over, so both names may share one file
    except OSError:
        shutil.copyfile(source, part)
    part.replace(target)


def _quiet(*_: object) -> None:
    pass
