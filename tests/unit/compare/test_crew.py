"""Those who do the runs leave when they are told to, whatever they were doing."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glocal.compare import crew as crew_module
from glocal.compare.crew import Crew
from glocal.data.sources import digits
from glocal.errors import GlocalError
from glocal.train.screen import Screen, Silent
from glocal.train.signals import Listener


@dataclass(frozen=True)
class Stubborn:
    """Fails at once, or hears signals and goes on."""

    title: str
    how: str

    def do(self, pair: Any, show: Screen) -> None:
        if self.how == "fails":
            raise GlocalError("the disk is full")
        if self.how == "breaks":
            raise ZeroDivisionError("by zero")
        with Listener():
            time.sleep(120)


@pytest.mark.parametrize(("how", "told"), [("fails", "the disk is full"), ("breaks", "ZeroDivisionError: by zero")])
def test_a_failed_run_ends_the_comparison_although_another_does_not_listen(
    how: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "_PATIENCE", 0.5)
    with pytest.raises(GlocalError, match=f"first: {told}"), Crew(digits(), 2, tmp_path) as crew:
        crew.work([Stubborn("first", how), Stubborn("second", "sleeps")], Silent(), lambda *_: None, lambda: None)
    assert not any(each.is_alive() for each in crew.processes)


@dataclass(frozen=True)
class Asked:
    """Tells whether its process would hear Ctrl-C outside of a run."""

    title: str = "asked"

    def do(self, pair: Any, show: Screen) -> bool:
        return signal.getsignal(signal.SIGINT) != signal.SIG_IGN


def test_ctrl_c_is_heard_by_the_first_process_and_its_helpers_end_without_a_traceback(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Crew(digits(), 2, tmp_path) as crew:
        assert crew.work([Asked()], Silent(), lambda *_: None, lambda: None) == [False]
    assert signal.getsignal(signal.SIGINT) == before != signal.SIG_IGN
