"""Who does the runs: this process, or several at once with a core each, because tiny models leave the others idle."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from glocal.data.dense import DensePair
from glocal.data.images import Pair
from glocal.errors import GlocalError
from glocal.train.screen import Screen, Silent
from glocal.train.signals import Interrupted, Listener

_PATIENCE = 20.0  # seconds a process has for its last checkpoint


class Task(Protocol):
    """Something to be done with the images; what it returns can be sent between processes."""

    @property
    def title(self) -> str:
        """Name it in a message."""
        ...

    def do(self, pair: Pair | DensePair, show: Screen) -> Any:
        """Do it."""
        ...


Told = Callable[[Any, Any], None]  # gets a task that is done, and what came of it


class Crew:
    """Does tasks; leave it as a context, or its processes stay."""

    def __init__(self, pair: Pair | DensePair, workers: int, folder: Path) -> None:
        self.pair, self.workers, self.folder = pair, workers, folder
        self.processes: list[Any] = []

    def __enter__(self) -> Crew:
        if self.workers > 1:
            context = multiprocessing.get_context("spawn")
            self.todo, self.told = context.Queue(), context.Queue()
            arguments = (self.pair, self.todo, self.told)
            self.processes = [context.Process(target=_work, args=arguments) for _ in range(self.workers)]
            with _deaf():
                for each in self.processes:
                    each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            each.join(_PATIENCE)  # one that listens for signals saves first, and may fail to: a full disk, say
            each.kill()
            each.join()

    def work(self, tasks: Sequence[Task], show: Screen, told: Told, tick: Callable[[], None]) -> list[Any]:
        """Do the tasks in order and return what came of each; `tick` is called while others work."""
        if not self.processes:
            return [_alone(task, self.pair, show, told) for task in tasks]
        for number, task in enumerate(tasks):
            self.todo.put((number, task))
        with Listener() as listener:
            return self._gathered(tasks, told, tick, listener)

    def _gathered(self, tasks: Sequence[Task], told: Told, tick: Callable[[], None], listener: Listener) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < len(tasks):
            try:
                number, result, fault = self.told.get(timeout=0.5)
            except queue.Empty:
                tick()
                self._look_up(listener)
                continue
            if fault:
                raise GlocalError(f"{tasks[number].title}: {fault}")
            results[number] = result
            told(tasks[number], result)
        return [results[number] for number in range(len(tasks))]

    def _look_up(self, listener: Listener) -> None:
        if listener.heard:
            for each in self.processes:
                # Each saves at its next step; a terminal has sent them SIGINT already, and a second one would not wait.
                os.kill(each.pid, signal.SIGTERM)
            for each in self.processes:
                each.join(60)
            saved = any(self.folder.glob("runs/*/checkpoints/*.pt"))
            raise Interrupted(listener.heard, str(self.folder) if saved else None)
        if not all(each.is_alive() for each in self.processes) and self.told.empty():
            raise GlocalError("a run ended without a word; is there enough memory? Continue with --resume.")


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that a terminal's Ctrl-C does not end half-way with a traceback: a run listens, and we tell them.

    They take over what their parent does with the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _alone(task: Task, pair: Pair | DensePair, show: Screen, told: Told) -> Any:
    result = task.do(pair, show)
    told(task, result)
    return result


def _work(pair: Pair | DensePair, todo: Any, told: Any) -> None:
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        number = 0
        try:
            number, task = todo.get(timeout=2)
            told.put((number, task.do(pair, Silent()), ""))
        except queue.Empty:
            continue
        except (Interrupted, KeyboardInterrupt):
            return
        except GlocalError as error:
            told.put((number, None, str(error)))
        except Exception as error:  # a fault of ours: its place is worth showing
            traceback.print_exc()
            told.put((number, None, f"{type(error).__name__}: {error}"))
