"""What a run keeps besides its last weights can be used: the moving average, the best, and those of a stopped run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glocal import GlocalError
from glocal.recipes.by_name import open_classifier
from glocal.recipes.evaluate import evaluate
from glocal.recipes.run import run
from glocal.recipes.trained import open_trained, predict
from glocal.train import checkpoint
from glocal.train.screen import Silent
from glocal.train.unpack import unpack
from tests.unit.train.tiny import restless


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpack") / "run"
    run(restless(), folder, show=Silent())
    return folder


def test_the_moving_average_is_a_model_of_its_own(done: Path) -> None:
    state = checkpoint.read(done / "checkpoints" / "last.pt")
    for name, part in (("model", "model"), ("model_ema", "ema")):
        kept = load_file(done / f"{name}.safetensors")
        assert all(torch.equal(kept[key], each) for key, each in state[part].items())
    figures = checkpoint.read(done / "checkpoints" / "last.pt")["history"][-1]
    assert evaluate(str(done / "model_ema.safetensors"), None, 32)[0]["top1"] == pytest.approx(figures["ema_top1"])
    assert evaluate(str(done), None, 32)[0]["top1"] == pytest.approx(figures["top1"])


@pytest.mark.parametrize("ema", [False, True])
def test_a_checkpoint_becomes_a_model_that_knows_its_classes_anywhere(done: Path, tmp_path: Path, ema: bool) -> None:
    stopped = tmp_path / "stopped" / "checkpoints" / "last.pt"  # its folder has neither recipe nor metrics
    stopped.parent.mkdir(parents=True)
    shutil.copy(done / "checkpoints" / "best.pt", stopped)
    state = checkpoint.read(stopped)
    file = tmp_path / "elsewhere" / "best.safetensors"
    assert unpack(stopped, file, ema=ema) == state["step"]
    assert unpack(stopped, file, ema=ema)  # a second time takes the place of the first
    trained, whole = open_trained(str(file)), open_trained(str(done))
    weights = trained.model.state_dict()
    assert all(torch.equal(weights[key].cpu(), each) for key, each in state["ema" if ema else "model"].items())
    assert (trained.classes, trained.mean, trained.std) == (whole.classes, whole.mean, whole.std)
    assert trained.size == whole.size
    assert trained.run


def test_a_checkpoint_given_for_a_model_says_what_makes_one_of_it(done: Path) -> None:
    file = done / "checkpoints" / "best.pt"
    for use in (lambda: predict(str(file), [done], 1), lambda: open_classifier(str(file))):
        with pytest.raises(
            GlocalError, match=r"is a training checkpoint. `glocal convert .*best.pt -o .*best.safetens"
        ):
            use()


def test_what_a_checkpoint_lacks_is_told(done: Path, tmp_path: Path) -> None:
    state = checkpoint.read(done / "checkpoints" / "last.pt")
    out = tmp_path / "out.safetensors"
    with pytest.raises(GlocalError, match="--name and --classes are for released checkpoints"):
        unpack(done / "checkpoints" / "last.pt", out, released=True)
    torch.save(state | {"ema": None}, tmp_path / "plain.pt")
    with pytest.raises(GlocalError, match="holds no moving average"):
        unpack(tmp_path / "plain.pt", out, ema=True)
    torch.save({key: each for key, each in state.items() if key != "record"}, tmp_path / "old.pt")
    with pytest.raises(GlocalError, match="written by an earlier version"):
        unpack(tmp_path / "old.pt", out)
    torch.save(state["model"], tmp_path / "weights.pt")
    assert unpack(tmp_path / "weights.pt", out) is None
    assert not out.exists()
