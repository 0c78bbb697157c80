"""Two processes learn what one learns, and evaluate every image once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glocal.recipes.run import run
from glocal.recipes.schema import parse
from glocal.train.journal import read
from glocal.train.screen import Silent

RECIPE = """
host: {name: vit_tiny_patch16_224, img_size: 8, patch_size: 2, embed_dim: 12, depth: 2, num_heads: 3}
data: {name: digits, batch_size: 32, limit: 320}
mechanisms: [life]  # no BatchNorm, whose statistics would be those of half a batch
optim: {lr: 5.0e-3, clip: 1.0}
accumulate: 2
epochs: 2
log_every: 1
trackers: []
"""


def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "glocal", "train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top-1") == 1  # one process speaks
    run(parse(RECIPE), tmp_path / "one", show=Silent())
    curves = [
        [line["loss"] for line in read(tmp_path / name / "log.jsonl") if "loss" in line] for name in ("one", "two")
    ]
    assert len(curves[0]) == 20
    assert curves[0][-1] < curves[0][0]
    assert curves[1] == pytest.approx(curves[0], abs=2e-5)
    counted = [line["val_images"] for line in read(tmp_path / "two" / "log.jsonl") if "val_images" in line]
    assert counted == [450, 450]
