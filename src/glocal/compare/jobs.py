"""The runs of a comparison as jobs, and doing them one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from glocal.compare.crew import Crew
from glocal.data.dense import DensePair
from glocal.data.images import Pair
from glocal.recipes.run import run
from glocal.train.part import OutOfTime, Part
from glocal.train.screen import Screen, clock
from glocal.train.settings import Recipe

Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One run of a comparison, or a part of it."""

    title: str
    recipe: Recipe
    folder: Path
    resume: bool = False
    part: Part | None = None

    def do(self, pair: Pair | DensePair, show: Screen) -> Figures | None:
        """Train, and return the figures of the last evaluation; nothing where the time was over first."""
        words = {"resume": self.resume, "show": show, "title": self.title, "pair": pair, "part": self.part}
        try:
            if self.part is not None:
                self.part.check()
            outcome = run(self.recipe, self.folder, **words)
        except OutOfTime:
            return None
        return {key: value for key, value in outcome.metrics.items() if isinstance(value, (int, float))}

    @property
    def done(self) -> bool:
        """Tell whether the run has been finished."""
        return (self.folder / "metrics.json").exists()

    @property
    def step(self) -> int:
        """Read from its log how far the run has come."""
        try:
            return int(json.loads((self.folder / "log.jsonl").read_text().splitlines()[-1])["step"])
        except (OSError, ValueError, IndexError, KeyError):
            return 0


def at_a_stretch(jobs: Sequence[Job], crew: Crew, steps: int, score: str, show: Screen) -> None:
    """Finish the runs, as many at a time as the crew is large; those that are done are not repeated."""
    todo = [job for job in jobs if not job.done]
    numbered = [replace(job, title=f"{job.title} ({i}/{len(todo)})") for i, job in enumerate(todo, start=1)]

    def told(job: Job, figures: Figures) -> None:
        show.note(f"{job.title}: {figures[score]:.2f} % after {clock(figures['seconds'])}")

    with progress(numbered, crew, steps * len(numbered), show) as tick:
        crew.work(numbered, show, told, tick)


@contextmanager
def progress(jobs: Sequence[Job], crew: Crew, steps: int, show: Screen) -> Iterator[Callable[[], None]]:
    """Show how far jobs in other processes have come; a job in this one shows its own progress."""

    def tick() -> None:
        show.step(sum(job.step for job in jobs))

    if not crew.processes:
        yield lambda: None
        return
    show.start(f"{len(jobs)} runs, {min(crew.workers, len(jobs))} at a time", steps, sum(job.step for job in jobs))
    try:
        yield tick
    finally:
        show.stop()
