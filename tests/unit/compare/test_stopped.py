"""What a comparison leaves whose runs all stopped before a checkpoint."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glocal.compare import run as run_module
from glocal.compare.plan import Plan, plan
from glocal.compare.run import compare
from glocal.data.images import Pair
from glocal.errors import GlocalError
from glocal.train.checkpoint import alone_in
from glocal.train.screen import Silent
from glocal.train.signals import Interrupted

HOST = "vit_tiny_patch16_224(depth=1,embed_dim=24,num_heads=2)"


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def _planned(lr: float, log_every: int = 1) -> tuple[Plan, Pair]:
    made, pair = plan(host=HOST, variants=["cb"], seeds=1, epochs=1, lr=lr, batch=128)
    return replace(made, recipe=replace(made.recipe, log_every=log_every)), pair


@pytest.mark.parametrize("there", [False, True])
def test_logs_are_kept_aside_and_the_mended_command_finds_the_folder_free(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
    for kept in ("stopped", "stopped-2"):
        with pytest.raises(GlocalError, match=rf"not finite.* What was logged until then is in {folder / kept}\."):
            compare(*_planned(1e30), folder, Silent())
        assert (folder / kept / "host-seed0" / "log.jsonl").read_text()
    assert sorted(each.name for each in folder.iterdir()) == ["stopped", "stopped-2"]
    assert len(compare(*_planned(1e-3), folder, Silent()).results) == 2


@pytest.mark.parametrize("there", [False, True])
def test_without_a_log_there_is_nothing_to_keep(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    with pytest.raises(GlocalError, match="not finite"):
        compare(*_planned(1e30, log_every=1000), folder, Silent())
    assert sorted(each.name for each in tmp_path.rglob("*")) == (["notes.txt", "out"] if there else [])


@pytest.mark.parametrize("stop", [Interrupted(signal.SIGINT, None), KeyboardInterrupt()])
def test_one_that_is_stopped_before_a_checkpoint_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr(run_module, "at_a_stretch", stopped)
    with pytest.raises(type(stop)):
        compare(*_planned(1e-3), tmp_path / "out", Silent())
    assert not list(tmp_path.iterdir())
    assert str(Interrupted(signal.SIGINT, None)) == "stopped by SIGINT; nothing was to be saved yet."


def test_a_comparison_that_was_going_on_is_kept_whole(tmp_path: Path) -> None:
    compare(*_planned(1e-3), tmp_path, Silent())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(GlocalError, match="was begun with other settings"):
        compare(*_planned(1e30), tmp_path, Silent(), resume=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_comparison_whose_images_have_changed_is_not_gone_on_with(tmp_path: Path) -> None:
    made, pair = _planned(1e-3)
    compare(made, pair, tmp_path, Silent())
    fewer = replace(pair, train=pair.train.take(torch.arange(1000)))  # pyright: ignore
    with pytest.raises(GlocalError, match="begun with other images: training images: 1347 -> 1000"):
        compare(made, fewer, tmp_path, Silent(), resume=True)


def test_a_second_comparison_in_the_folder_is_refused_and_disturbs_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("of the first")
    with alone_in(tmp_path), pytest.raises(GlocalError, match="is in use by process"):
        compare(*_planned(1e-3), tmp_path, Silent(), resume=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "plan.json"]
