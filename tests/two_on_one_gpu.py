"""One of two processes that train on one GPU: over gloo, because NCCL refuses two processes on one device."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import PartialState

from glocal.recipes.run import run
from glocal.recipes.schema import read
from glocal.train.screen import Silent


def main(recipe: str, folder: str) -> None:
    """Train a recipe in the process group that the environment tells."""
    PartialState(backend="gloo")  # the first to be made; `run` finds it and does not ask for NCCL
    run(read(Path(recipe)), Path(folder), show=Silent())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
