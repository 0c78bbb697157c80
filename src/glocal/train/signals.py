"""Stop when asked: finish the step, save, and leave with the signal's exit code."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):
    """A run was asked to stop, and has saved its state if it had come so far."""

    def __init__(self, number: int, saved: str | None) -> None:
        state = f"saved to {saved}. Continue with --resume" if saved else "nothing was to be saved yet"
        super().__init__(f"stopped by {signal.Signals(number).name}; {state}.")
        self.code = 128 + number


class Listener:
    """Notes SIGTERM and SIGINT while a run goes on; a second SIGINT ends it at once."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Listener:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.heard == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.heard = number
