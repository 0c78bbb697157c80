"""Kill a run anywhere, resume it, and it ends with the very same bits."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glocal.recipes.run import run
from glocal.train import checkpoint
from glocal.train.screen import Silent
from glocal.train.settings import SaveSettings
from tests.processes import ready_server
from tests.unit.train.tiny import restless

SETTINGS = restless(epochs=6, save=SaveSettings(every_steps=2))


def _train(folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())  # whatever a new process starts with must not matter
    run(SETTINGS, folder, resume=True, show=Silent())


def _start(folder: Path) -> BaseProcess:
    child = ready_server().Process(target=_train, args=(folder,))  # imports done, so kills land in training itself
    child.start()
    return child


def _uninterrupted(folder: Path) -> float:
    ready_server()
    began = time.monotonic()
    child = _start(folder)
    child.join()
    assert child.exitcode == 0
    return time.monotonic() - began


def _killed(folder: Path, kills: int, seconds: float, draw: random.Random) -> int:
    """Kill the run so often, at random moments, then let it finish; tell how many kills hit it alive."""
    hits = 0
    for _ in range(kills):
        child = _start(folder)
        child.join(draw.uniform(0.02, min(0.6 * seconds, 3 * seconds / kills)))
        hits += child.is_alive()
        child.kill()
        child.join()
    child = _start(folder)
    child.join()
    assert child.exitcode == 0
    return hits


def _same(first: Path, second: Path) -> None:
    ends = [load_file(folder / "model.safetensors") for folder in (first, second)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    one, two = (checkpoint.read(folder / "checkpoints" / "last.pt") for folder in (first, second))
    for part in ("model", "ema"):
        assert all(torch.equal(one[part][name], two[part][name]) for name in one[part])
    moments = [[v for s in state["optimizer"]["state"].values() for v in s.values()] for state in (one, two)]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*moments, strict=True))
    assert [line["top1"] for line in one["history"]] == [line["top1"] for line in two["history"]]
    assert not list((second / "checkpoints").glob("*.part"))


def _check(folder: Path, kills: int, seed: int) -> None:
    seconds = _uninterrupted(folder / "whole")
    hits = _killed(folder / "torn", kills, seconds, random.Random(seed))
    assert hits >= kills // 2
    _same(folder / "whole", folder / "torn")


def test_a_run_killed_four_times_ends_bit_identical(tmp_path: Path) -> None:
    _check(tmp_path, 4, seed=time.time_ns())


@pytest.mark.slow
def test_a_run_killed_twenty_four_times_ends_bit_identical(tmp_path: Path) -> None:
    _check(tmp_path, 24, seed=time.time_ns())
