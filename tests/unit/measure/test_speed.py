from __future__ import annotations

import time

import pytest

from glocal import GlocalError
from glocal.measure.speed import Setting, interleave, speed_rows


def test_the_ratio_tells_how_much_slower_a_call_is_than_the_first() -> None:
    order: list[str] = []

    def waiting(name: str, seconds: float) -> None:
        order.append(name)
        time.sleep(seconds)

    calls = {"host": lambda: waiting("host", 0.01), "slow": lambda: waiting("slow", 0.03)}
    timings = interleave(calls, rounds=5, warmup=1)
    assert timings["host"].ratio == 1
    assert timings["slow"].ratio == pytest.approx(3, rel=0.5)
    assert timings["slow"].low <= timings["slow"].median <= timings["slow"].high
    # Turn by turn; the first call of a turn finds what others left in the processor's memories, and does not count.
    assert order[-40:] == (["host"] * 4 + ["slow"] * 4) * 5


def test_an_unknown_number_type_is_named_with_the_nearest() -> None:
    rows = speed_rows("vit_tiny_patch16_224", [], [Setting(dtype="bfloat61", size=(32, 32))])
    with pytest.raises(GlocalError, match="Did you mean 'bfloat16'"):
        next(rows)


def test_anothers_module_must_be_a_module() -> None:
    rows = speed_rows("vit_tiny_patch16_224", [], [Setting(size=(32, 32))], against="time:time")
    with pytest.raises(GlocalError, match="not a torch module"):
        next(rows)
