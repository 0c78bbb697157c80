"""Checkpoints that are whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glocal.errors import GlocalError


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; if that fails, what was there before stays as it was."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(path, buffer.getbuffer())


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a whole file or nothing."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise GlocalError(
            f"{path} cannot be written: {error.strerror or error}. Earlier files are intact; "
            f"make room and continue with --resume."
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2) + "\n").encode())


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint back to the CPU."""
    try:
        # Only files this program wrote are read: they hold generator states besides tensors.
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise GlocalError(
            f"{path} is not a whole checkpoint ({error}). Remove it and resume from an earlier one."
        ) from None


def prune(folder: Path, keep: int) -> None:
    """Keep the newest numbered checkpoints, and clear away what a killed run left half-written."""
    numbered = sorted(folder.glob("epoch-*.pt"))
    for path in (*numbered[: max(len(numbered) - keep, 0)], *folder.glob("*.part")):
        path.unlink(missing_ok=True)


def random_state() -> dict[str, Any]:
    """Take the state of every random generator."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random(state: dict[str, Any]) -> None:
    """Set every random generator back."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a run folder; a second run in it is refused. The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a+")
    except OSError as error:
        raise GlocalError(f"{folder} cannot be used for a run: {error.strerror or error}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise GlocalError(
                f"{folder} is in use by process {file.read().strip() or 'unknown'}. "
                f"Wait for it, or choose another folder."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
