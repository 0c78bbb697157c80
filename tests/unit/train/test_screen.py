"""What a person sees of a run."""

from __future__ import annotations

import pytest

from glocal.train.screen import Bar, Lines, Silent, clock, screen


def test_durations_are_short_to_read() -> None:
    assert [clock(seconds) for seconds in (3.4, 200, 7500)] == ["3s", "3m20s", "2h05m"]


def test_where_there_is_no_terminal_lines_come_now_and_then_and_once_at_the_end(capsys: pytest.CaptureFixture) -> None:
    shown = screen()
    assert isinstance(shown, Lines)
    shown.start("run", 10)
    for step in range(1, 11):
        if step == 10:
            shown.step(step, loss=0.51, **{"img/s": 1234.0})
        shown.step(step)
    assert capsys.readouterr().out.splitlines() == ["run  10/10  loss 0.51  img/s 1,234  0s left"]
    assert isinstance(screen(main=False), Silent)


def test_the_bar_shows_notes_and_goes_away(capsys: pytest.CaptureFixture) -> None:
    bar = Bar()
    bar.start("run", 4)
    bar.step(2, loss=1.0)
    bar.note("one thing to say [not markup]")
    bar.stop()
    assert "one thing to say [not markup]" in capsys.readouterr().out
