"""What a person sees of a run: a live bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol, TextIO


class Screen(Protocol):
    """Shows progress."""

    def start(self, title: str, total: int, done: int = 0) -> None:
        """Begin a run of `total` steps."""
        ...

    def step(self, done: int, **values: float) -> None:
        """Tell that so many steps are done."""
        ...

    def note(self, text: str) -> None:
        """Say one thing that stays on the screen."""
        ...

    def stop(self) -> None:
        """End the run's display."""
        ...


class Silent:
    """Shows nothing: processes that are not the main one, and tests."""

    def start(self, title: str, total: int, done: int = 0) -> None:
        """Begin."""

    def step(self, done: int, **values: float) -> None:
        """Go on."""

    def note(self, text: str) -> None:
        """Stay silent."""

    def stop(self) -> None:
        """End."""


class Lines(Silent):
    """One line now and then."""

    def __init__(self, every: float = 30.0, *, aside: bool = False) -> None:
        self.every = every
        self.aside = aside
        self.title, self.total, self.first = "", 0, 0
        self.began = self.last = 0.0
        self.values: dict[str, float] = {}

    def start(self, title: str, total: int, done: int = 0) -> None:
        """Begin a run."""
        self.title, self.total, self.first = title, total, done
        self.began = self.last = time.monotonic()

    def step(self, done: int, **values: float) -> None:
        """Write a line when the last one is old enough."""
        now = time.monotonic()
        self.values = values or self.values
        if now - self.last < self.every and not (values and done == self.total):
            return
        self.last = now
        left = (now - self.began) / max(done - self.first, 1) * (self.total - done)
        told = "  ".join(f"{name} {_short(value)}" for name, value in self.values.items())
        print(f"{self.title}  {done}/{self.total}  {told}  {clock(left)} left", flush=True, file=self._file)

    def note(self, text: str) -> None:
        """Write a line."""
        print(text, flush=True, file=self._file)

    @property
    def _file(self) -> TextIO:
        return sys.stderr if self.aside else sys.stdout


class Bar:
    """A bar with throughput and time left."""

    def __init__(self, *, aside: bool = False) -> None:
        from rich.console import Console

        self.console = Console(stderr=aside)
        self.bar: Any = None
        self.job: Any = None

    def start(self, title: str, total: int, done: int = 0) -> None:
        """Begin a run."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.stop()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
        )
        self.bar.start()
        self.job = self.bar.add_task(title, total=total, completed=done, told="")

    def step(self, done: int, **values: float) -> None:
        """Move the bar."""
        told = "  ".join(f"{name} {_short(value)}" for name, value in values.items())
        self.bar.update(self.job, completed=done, **({"told": told} if told else {}))

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        self.console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def screen(main: bool = True, *, aside: bool = False) -> Screen:
    """Choose a display for where the output goes; `aside` leaves standard output to the result."""
    if not main:
        return Silent()
    live = (sys.stderr if aside else sys.stdout).isatty()
    return Bar(aside=aside) if live else Lines(aside=aside)


def clock(seconds: float) -> str:
    """Write a duration as 45s, 3m20s or 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02}m"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
