"""A checkpoint of a run as a saved model: its best weights, its moving average, or those of a run that was stopped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glocal.errors import GlocalError
from glocal.released.files import read_file
from glocal.store import write


def is_checkpoint(content: Any) -> bool:
    """Tell whether what a file holds was written by a run."""
    return isinstance(content, Mapping) and {"recipe", "model", "optimizer", "step"} <= set(content)


def unpack(source: Path, out: Path, *, ema: bool = False, released: bool = False) -> int | None:
    """Write the weights in a checkpoint to a file that `glocal.load` reads; None if the source is of another kind.

    Returns the step they are of. The file is read as data: no code in it runs. `released` says that the caller has
    wishes which only a released checkpoint can meet.
    """
    content = read_file(source)
    if not is_checkpoint(content):
        return None
    if released:
        raise GlocalError(f"--name and --classes are for released checkpoints; {source} is of a run.")
    if "record" not in content:
        raise GlocalError(f"{source} was written by an earlier version, which did not tell its model. Finish the run.")
    weights = content["ema" if ema else "model"]
    if weights is None:
        raise GlocalError(f"{source} holds no moving average: its run had none. Leave --ema out.")
    write(weights, content["record"], out)
    return content["step"]
