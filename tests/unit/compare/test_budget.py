"""A budget is a limit, and cuts all runs alike."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glocal.compare.budget import Clock, Forecast, Pace, seconds
from glocal.compare.jobs import Job
from glocal.compare.plan import Plan, cut, plan, with_epochs
from glocal.compare.rounds import Rounds, ends, progressed
from glocal.compare.run import Comparison, compare
from glocal.compare.table import table
from glocal.data.feed import MemoryFeed
from glocal.data.images import MemoryImages, Pair
from glocal.errors import GlocalError
from glocal.recipes.run import run
from glocal.train.journal import read
from glocal.train.screen import Silent
from glocal.train.signals import Interrupted

HOST = "vit_tiny_patch16_224(depth=1,embed_dim=12,num_heads=3)"
MARGIN = 2.0  # what the last step and the report may take longer than foreseen


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def _small(seeds: int = 1) -> tuple[Plan, Pair]:
    """Two variants of five steps an epoch."""
    made, pair = plan(host=HOST, variants=["cb"], seeds=seeds, batch=32)
    assert isinstance(pair.train, MemoryImages) and isinstance(pair.val, MemoryImages)
    return made, Pair(pair.train.take(torch.arange(160)), pair.val.take(torch.arange(64)))


def _delay(monkeypatch, wait: Callable[[], float]) -> None:
    """Make the loader as slow as `wait` says at each batch."""
    given = MemoryFeed._batch

    def slowly(self: MemoryFeed, *words):
        time.sleep(wait())
        return given(self, *words)

    monkeypatch.setattr(MemoryFeed, "_batch", slowly)


def _timed(folder: Path, budget: float, **options) -> tuple[Comparison, float]:
    began = time.monotonic()
    found = compare(*_small(), folder, Silent(), budget=budget, **options)
    table(found)
    return found, time.monotonic() - began


def _ends(found: Comparison) -> set[int]:
    return {result.metrics["steps"] for result in found.results}


def test_durations_are_read_and_others_refused() -> None:
    assert (seconds("90s"), seconds("10m"), seconds("1h30m"), seconds("0.5m")) == (90, 600, 5400, 30)
    for text in ("ten", "10", "5d", "10m x", "10 apples", "-5m", "", "0s"):
        with pytest.raises(GlocalError, match="Write 90s, 10m"):
            seconds(text)


def test_rounds_begin_with_one_epoch_and_are_few() -> None:
    assert ends(0, 1) == [1]
    assert ends(0, 5) == [1, 2, 3, 4, 5]
    assert ends(0, 100)[0] == 1
    assert ends(0, 100)[-1] == 100
    assert len(ends(0, 100)) <= 8
    assert ends(96, 100) == [100]
    assert ends(100, 100) == []


def test_a_forecast_shares_the_runs_among_the_workers() -> None:
    paces = (Pace(1.0, 2.0), Pace(1.0, 4.0), Pace(1.0, 2.0))
    assert Forecast(paces, 1).seconds(epochs=3, rounds=1) == 3 + 3 * 8
    assert Forecast(paces, 1).seconds(epochs=3, rounds=3) == 9 + 3 * 8
    assert Forecast(paces, 2).seconds(epochs=1, rounds=1) == 6  # 3 + 3 beside 5


def test_a_clock_counts_earlier_parts_and_keeps_time_for_the_end() -> None:
    watch = Clock(100.0, time.monotonic() - 10, before=30.0)
    watch.closing = 5.0
    assert watch.spent == pytest.approx(40, abs=0.5)
    assert watch.left == pytest.approx(55, abs=0.5)


def test_a_cut_keeps_the_warm_up_that_is_past_and_says_so() -> None:
    made = plan(host=HOST, variants=["cb"])[0]
    made = replace(made, recipe=with_epochs(made.recipe, 100))
    late, early = cut(made, 50, 60), cut(made, 2, 10)
    assert (late.recipe.epochs, late.recipe.optim.warmup_epochs) == (60, 10)
    assert (early.recipe.epochs, early.recipe.optim.warmup_epochs) == (10, 2)
    assert "60 of 100 planned epochs, the same for every run" in late.warning
    assert "had not come down yet" in cut(late, 55, 55).warning
    assert "55 of 100" in cut(late, 55, 55).warning
    assert not made.warning


def test_rounds_give_the_weights_of_a_run_at_a_stretch(tmp_path: Path, monkeypatch) -> None:
    _delay(monkeypatch, lambda: 0.1)
    found, _ = _timed(tmp_path / "rounds", budget=12)
    assert found.plan.planned is None
    epochs = found.plan.recipe.epochs
    assert epochs > 2
    monkeypatch.undo()
    made, pair = _small()
    made = replace(made, recipe=with_epochs(made.recipe, epochs))
    for variant, seed, recipe in made.runs():
        run(recipe, tmp_path / variant.name, show=Silent(), pair=pair)
        there = load_file(tmp_path / "rounds" / "runs" / f"{variant.name}-seed{seed}" / "model.safetensors")
        alone = load_file(tmp_path / variant.name / "model.safetensors")
        assert all(torch.equal(there[key], alone[key]) for key in alone)


def test_runs_slower_than_foreseen_are_cut_alike_and_end_in_time(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "out"
    _delay(monkeypatch, lambda: 0.15 if progressed(folder)[1] else 0.04)
    found, taken = _timed(folder, budget=10)
    assert taken < 10 + MARGIN
    made = found.plan
    assert made.planned is not None
    assert 1 <= made.recipe.epochs < made.planned
    assert _ends(found) == {5 * made.recipe.epochs}
    assert "planned epochs, the same for every run" in table(found).render("text")
    assert json.loads((folder / "plan.json").read_text())["planned"] == made.planned
    if not made.stopped:  # the rate came down all the way
        last = [line["lr"] for line in read(folder / "runs" / "cb-seed0" / "log.jsonl") if "lr" in line][-1]
        assert last < 0.2 * made.recipe.optim.lr


def test_time_that_runs_out_within_a_round_takes_all_runs_back_to_the_last_one(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "out"
    host = Job("host", _small()[0].recipe, folder / "runs" / "host-seed0")
    _delay(monkeypatch, lambda: 3.0 if host.step > 5 else 0.02)  # the host is an epoch ahead when all grows slow
    found, taken = _timed(folder, budget=8)
    assert taken < 8 + 3 + MARGIN  # one step was on its way
    assert found.plan.stopped
    assert found.plan.recipe.epochs == 1
    assert _ends(found) == {5}
    assert "had not come down yet" in table(found).render("text")
    logs = [read(folder / "runs" / f"{name}-seed0" / "log.jsonl") for name in ("host", "cb")]
    assert {log[-1]["step"] for log in logs} == {5}
    assert not list(folder.rglob("round-*.pt"))


def test_a_budget_too_short_for_one_epoch_each_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    _delay(monkeypatch, lambda: 0.3)
    with pytest.raises(GlocalError, match=r"a budget of 4s is too short: one epoch of 2 variants x 1 seed takes"):
        _timed(tmp_path / "out", budget=4)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_comparison_counts_the_time_it_used_before(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "out"
    _delay(monkeypatch, lambda: 0.05)

    def interrupt(self, jobs, until):
        if until > 1:
            raise Interrupted(15, str(folder))
        return given(self, jobs, until)

    given = Rounds._round
    monkeypatch.setattr(Rounds, "_round", interrupt)
    with pytest.raises(Interrupted):
        _timed(folder, budget=10)
    used, epochs = progressed(folder)
    assert used > 1
    assert epochs == 1
    planned = json.loads((folder / "plan.json").read_text())["recipe"]["epochs"]
    monkeypatch.setattr(Rounds, "_round", given)
    found, taken = _timed(folder, budget=10, resume=True)
    assert found.seconds > used + 0.9 * taken - 1
    assert taken < 10 - used + MARGIN
    assert planned in (found.plan.recipe.epochs, found.plan.planned)
    assert len(_ends(found)) == 1
