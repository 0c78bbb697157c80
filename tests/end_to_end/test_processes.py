"""Two processes learn what one learns, and evaluate every image once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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


def _two(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "glocal"]
    command += ["train", str(folder.parent / "recipe.yaml"), "-o", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read(folder / "log.jsonl") if "loss" in line]


def test_two_processes_have_the_loss_curve_of_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert _two(tmp_path / "two").count("top-1") == 1  # one process speaks
    run(parse(RECIPE), tmp_path / "one", show=Silent())
    alone, both = _losses(tmp_path / "one"), _losses(tmp_path / "two")
    assert len(alone) == 20
    assert alone[-1] < alone[0]
    assert both == pytest.approx(alone, abs=2e-5)
    counted = [line["val_images"] for line in read(tmp_path / "two" / "log.jsonl") if "val_images" in line]
    assert counted == [450, 450]


@pytest.mark.slow
def test_sharded_weights_have_the_loss_curve_of_whole_ones_and_resume(tmp_path: Path) -> None:
    text = RECIPE + "shard: true\nsave: {every_epochs: 1}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    _two(tmp_path / "shards")
    run(parse(RECIPE), tmp_path / "one", show=Silent())
    assert _losses(tmp_path / "shards") == pytest.approx(_losses(tmp_path / "one"), abs=2e-5)
    (tmp_path / "again" / "checkpoints").mkdir(parents=True)
    shutil.copy(tmp_path / "shards/checkpoints/epoch-00001.pt", tmp_path / "again/checkpoints/last.pt")
    _two(tmp_path / "again", "--resume")
    assert _losses(tmp_path / "again") == _losses(tmp_path / "shards")[10:]
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("shards", "again", "one")]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    assert all(torch.allclose(ends[0][key], ends[2][key], atol=1e-3) for key in ends[0])


NORMALISED = """
host: {name: vit_tiny_patch16_224, img_size: 8, patch_size: 2, embed_dim: 12, depth: 2, num_heads: 3}
data: {name: digits, batch_size: 32, limit: 320}
mechanisms: [local-ffn]
optim: {lr: 5.0e-3, clip: 1.0}
epochs: 2
log_every: 1
trackers: []
"""


def _two_on_one_gpu(recipe: Path, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # As on two machines with a GPU each: both processes are the first of theirs, and so use the first GPU.
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    command = [sys.executable, "-m", "tests.two_on_one_gpu", str(recipe), str(folder)]
    crew = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    ends = [each.communicate(timeout=300)[1] for each in crew]
    assert [each.returncode for each in crew] == [0, 0], ends


@pytest.mark.gpu
def test_shared_batch_norm_gives_two_processes_the_loss_curve_of_one(tmp_path: Path) -> None:
    for name, text in (("shared", NORMALISED + "sync_bn: true\n"), ("apart", NORMALISED)):
        (tmp_path / f"{name}.yaml").write_text(text)
        _two_on_one_gpu(tmp_path / f"{name}.yaml", tmp_path / name)
    run(parse(NORMALISED), tmp_path / "one", show=Silent())
    alone, shared, apart = (torch.tensor(_losses(tmp_path / name)) for name in ("one", "shared", "apart"))
    assert len(alone) == 20
    assert alone[-1] < alone[0]
    far, near = ((each - alone).abs().max().item() for each in (apart, shared))
    print(f"largest difference of the loss from one process: shared statistics {near:.1e}, apart {far:.1e}")
    assert near < 1e-3
    assert far > 10 * near  # or the test could not tell
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "shared")]
    assert ends[0].keys() == ends[1].keys()
    means = [name for name in ends[0] if name.endswith("running_mean")]
    assert means
    for name in means:
        assert torch.allclose(ends[0][name], ends[1][name], atol=5e-3), name


def test_shared_batch_norm_is_refused_on_a_processor_and_changes_nothing_alone(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(NORMALISED + "sync_bn: true\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "glocal"]
    command += ["train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    assert done.returncode != 0
    assert "sync_bn needs GPUs" in done.stderr
    assert "glocal/train" not in done.stderr
    assert not list((tmp_path / "two").glob("*.yaml"))
    if not torch.cuda.is_available():
        for name, text in (("with", "sync_bn: true\n"), ("without", "")):
            run(parse(NORMALISED + "epochs: 1\n".replace("epochs", "seed") + text), tmp_path / name, show=Silent())
        assert _losses(tmp_path / "with") == _losses(tmp_path / "without")
