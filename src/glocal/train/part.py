"""A part of a run: some of its epochs, and a time after which it stops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from torch import nn


class OutOfTime(Exception):
    """The time of a part is over; what was saved before it stays."""


@dataclass(frozen=True)
class Part:
    """How far a run goes this time."""

    until: int
    """Epochs of the run that are done at the end of the part."""
    deadline: float = inf
    """When to stop at the latest, by `time.monotonic`."""

    def check(self, *_: object) -> None:
        """Raise once the time is over."""
        if time.monotonic() > self.deadline:
            raise OutOfTime

    @contextmanager
    def checked(self, model: nn.Module) -> Iterator[None]:
        """Check the time whenever the model is asked: an evaluation may be long."""
        if self.deadline == inf:
            yield
            return
        hook = model.register_forward_pre_hook(self.check)
        try:
            yield
        finally:
            hook.remove()
