"""Several runs at once, one processor core each: tiny models leave the other cores idle."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glocal.data.images import Pair
from glocal.errors import GlocalError
from glocal.train.screen import Screen, Silent, clock
from glocal.train.settings import Recipe
from glocal.train.signals import Interrupted, Listener


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    title: str
    recipe: Recipe
    folder: Path
    resume: bool

    def done(self) -> bool:
        """Tell whether the run has been finished before."""
        return (self.folder / "metrics.json").exists()

    def step(self) -> int:
        """Read from its log how far the run has come."""
        try:
            return int(json.loads((self.folder / "log.jsonl").read_text().splitlines()[-1])["step"])
        except (OSError, ValueError, IndexError, KeyError):
            return 0


def run_jobs(jobs: Sequence[Job], pair: Pair, workers: int, steps: int, show: Screen) -> None:
    """Run the jobs in worker processes; asked to stop, all of them save first."""
    context = multiprocessing.get_context("spawn")
    todo, told = context.Queue(), context.Queue()
    for job in jobs:
        todo.put(job)
    crew = [context.Process(target=_work, args=(pair, todo, told)) for _ in range(min(workers, len(jobs)))]
    with Listener() as listener:
        for each in crew:
            each.start()
        try:
            _watch(jobs, crew, told, listener, steps, show)
        finally:
            show.stop()
            for each in crew:
                each.terminate()
                each.join()


def _watch(jobs: Sequence[Job], crew: Sequence[Any], told: Any, listener: Listener, steps: int, show: Screen) -> None:
    count = len(jobs)
    show.start(f"{count} runs, {len(crew)} at a time", count * steps, sum(job.step() for job in jobs))
    left = count
    while left:
        try:
            title, seconds, result = told.get(timeout=0.5)
        except queue.Empty:
            show.step(sum(job.step() for job in jobs))
            if listener.heard:
                for each in crew:
                    os.kill(each.pid, listener.heard)  # each saves at its next step
                for each in crew:
                    each.join(60)
                raise Interrupted(listener.heard, str(jobs[0].folder.parent.parent)) from None
            if not any(each.is_alive() for each in crew) and told.empty():
                raise GlocalError("the runs ended without a word; is there enough memory?") from None
            continue
        if isinstance(result, str):
            raise GlocalError(f"{title}: {result}")
        left -= 1
        show.note(f"{title}: {result:.2f} % after {clock(seconds)}  ({count - left}/{count})")


def _work(pair: Pair, todo: Any, told: Any) -> None:
    import torch

    from glocal.recipes.run import run

    torch.set_num_threads(1)
    while True:
        try:
            job: Job = todo.get(timeout=1)
        except queue.Empty:
            return
        try:
            outcome = run(job.recipe, job.folder, resume=job.resume, show=Silent(), pair=pair)
        except Interrupted:
            return
        except GlocalError as error:
            told.put((job.title, 0.0, str(error)))
            return
        told.put((job.title, outcome.metrics["seconds"], outcome.metrics["top1"]))
