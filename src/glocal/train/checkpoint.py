"""Checkpoints that are whole or not there: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glocal.errors import GlocalError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a system says when there is no room."""


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
        with suppress(OSError):  # the folder itself may be what is wrong
            part.unlink(missing_ok=True)
        room = "Earlier files are intact; make room and continue with --resume."
        told = room if error.errno in FULL else "Choose another folder with -o."
        raise GlocalError(f"{path} cannot be written: {error.strerror or error}. {told}") from None


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
            f"{path} is not a whole checkpoint ({error}). --resume goes on from the newest one that can be read."
        ) from None


def newest(folder: Path) -> Path | None:
    """Find the checkpoint to go on from: the last one, or, where that is damaged or gone, the newest that is whole."""
    last, found = folder / "last.pt", sorted(folder.glob("*.pt"))
    if not found or _step(last) is not None:
        return last if found else None
    steps = {path: step for path in found if (step := _step(path)) is not None}
    if not steps:
        raise GlocalError(
            f"none of the checkpoints in {folder} can be read: {', '.join(each.name for each in found)}. "
            f"Begin again in another folder with -o."
        )
    return max(steps, key=lambda path: steps[path])


def _step(path: Path) -> int | None:
    try:
        return read(path)["step"]
    except (GlocalError, KeyError, TypeError):
        return None


def prune(folder: Path, keep: int) -> None:
    """Keep the newest numbered checkpoints, and clear away what a killed run left half-written."""
    numbered = sorted(folder.glob("epoch-*.pt"))
    for path in (*numbered[: max(len(numbered) - keep, 0)], *folder.glob("*.part")):
        path.unlink(missing_ok=True)


def random_state() -> dict[str, Any]:
    """Take the state of every random generator."""
    return {
        "python": random.getstate(),
        "numpy": tuple(each.tolist() if isinstance(each, np.ndarray) else each for each in np.random.get_state()),
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
        # Without a buffer: on a full disk one would be written, and fail, once more when the file is closed.
        file = (folder / ".lock").open("ab+", buffering=0)
    except OSError as error:
        raise GlocalError(
            f"{folder} cannot be used for a run: {error.strerror or error}. Choose another folder with -o."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise GlocalError(
                f"{folder} is in use by process {file.read().decode().strip() or 'unknown'}. "
                f"Wait for it, or choose another folder."
            ) from None
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except OSError as error:
            raise GlocalError(f"{folder} cannot be used for a run: {error.strerror or error}.") from None
        yield


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
