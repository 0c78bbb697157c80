"""A checkpoint is whole or not there, and a folder holds one run at a time."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from glocal.errors import GlocalError
from glocal.train import checkpoint
from glocal.train.journal import Journal, read


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "a.pt", {"x": torch.arange(3), "n": 7})
    assert torch.equal(checkpoint.read(tmp_path / "a.pt")["x"], torch.arange(3))
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def _write_too_much(folder: Path, out) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        checkpoint.write(folder / "last.pt", {"x": torch.zeros(1_000_000)})
    except GlocalError as error:
        out.put(str(error))


def test_a_disk_that_is_full_leaves_the_earlier_checkpoint_and_no_half_file(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "last.pt", {"x": torch.ones(3)})
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    child = context.Process(target=_write_too_much, args=(tmp_path, out))
    child.start()
    told = out.get(timeout=60)
    child.join()
    assert "cannot be written: File too large. Earlier files are intact" in told
    assert torch.equal(checkpoint.read(tmp_path / "last.pt")["x"], torch.ones(3))
    assert [each.name for each in tmp_path.iterdir()] == ["last.pt"]


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"PK\x03\x04half")
    with pytest.raises(GlocalError, match=r"last\.pt is not a whole checkpoint"):
        checkpoint.read(tmp_path / "last.pt")


def test_only_the_newest_numbered_checkpoints_are_kept(tmp_path: Path) -> None:
    for i in range(5):
        checkpoint.write(tmp_path / f"epoch-{i:05}.pt", {})
    checkpoint.write(tmp_path / "last.pt", {})
    checkpoint.prune(tmp_path, 7)
    assert len(list(tmp_path.glob("epoch-*.pt"))) == 5
    (tmp_path / "last.pt.part").write_bytes(b"left by a killed run")
    checkpoint.prune(tmp_path, 2)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["epoch-00003.pt", "epoch-00004.pt", "last.pt"]


def test_all_generators_return_to_a_saved_state() -> None:
    state = checkpoint.random_state()
    first = (random.random(), np.random.rand(), torch.rand(2))
    checkpoint.restore_random(state)
    second = (random.random(), np.random.rand(), torch.rand(2))
    assert first[:2] == second[:2]
    assert torch.equal(first[2], second[2])


def _hold(folder: Path, ready, done) -> None:
    with checkpoint.alone_in(folder):
        ready.set()
        done.wait(60)


def test_a_second_run_in_a_folder_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(tmp_path, ready, done))
    child.start()
    assert ready.wait(60)
    with pytest.raises(GlocalError, match=f"in use by process {child.pid}"), checkpoint.alone_in(tmp_path):
        pass
    child.kill()  # the lock goes with the process, however it ends
    child.join()
    with checkpoint.alone_in(tmp_path):
        pass


def test_a_log_is_cut_back_to_the_checkpoint_and_loses_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log.jsonl")
    for step in (5, 10, 15):
        journal.add(step=step, loss=1.0)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 2')
    journal.cut(10)
    assert [line["step"] for line in read(tmp_path / "log.jsonl")] == [5, 10]


def _lock_on_a_full_disk(folder: Path, out) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        with checkpoint.alone_in(folder):
            pass
    except GlocalError as error:
        out.put(str(error))


def test_a_disk_that_is_full_before_the_run_is_told_as_such(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    child = context.Process(target=_lock_on_a_full_disk, args=(tmp_path / "run", out))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert "cannot be used for a run: File too large." in out.get()
