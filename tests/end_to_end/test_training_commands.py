"""compare, train, eval, predict and recipes as a user calls them, and what they say when something is wrong."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from glocal.cli import main
from glocal.recipes.lines import write
from glocal.train import checkpoint
from tests.processes import ready_server
from tests.unit.train.tiny import recipe, restless

TINY = "vit_tiny_patch16_224(depth=1,embed_dim=12,num_heads=3)"


@pytest.fixture
def glocal(monkeypatch, capfd, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["glocal", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for name, shade in (("dark", 60), ("light", 180)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(24):
            pixels = np.clip(shade + 20 * draw.standard_normal((16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{i:02}.png")
    return tmp_path / "set"


def test_compare_on_a_folder_makes_table_and_report_and_resumes(glocal, pictures: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one after the other, in this process
    words = ("compare", "--data", pictures, "--host", TINY, "--with", "cb", "--seeds", 2, "--epochs", 2, "-o", "out")
    code, out, err = glocal(*words, "--lr", 0.01)
    assert code == 0, err
    assert "cb, seed 1 (4/4)" in out
    assert "gain [95 %]" in out
    assert "10 of 48 images are held out" in out
    assert Path("out/report.html").read_text().startswith("<!doctype html>")
    stored = json.loads(Path("out/results.json").read_text())
    assert TINY in shlex.split(stored["command"])  # it can be pasted into a shell
    assert [run["seed"] for run in stored["runs"]] == [0, 0, 1, 1]
    assert stored["classes"] == ["dark", "light"]
    code, _, err = glocal(*words, "--lr", 0.01)
    assert code == 2
    assert "holds a comparison already" in err
    Path("out/runs/cb-seed1/metrics.json").unlink()
    before = Path("out/runs/host-seed0/log.jsonl").stat().st_mtime_ns
    code, out, _ = glocal(*words, "--lr", 0.01, "--resume", "--format", "json")
    assert code == 0
    assert json.loads(out)[0]["variant"] == "host"
    assert Path("out/runs/host-seed0/log.jsonl").stat().st_mtime_ns == before
    code, _, err = glocal(*words, "--lr", 0.02, "--resume")
    assert code == 2
    assert "begun with other settings" in err


def test_a_comparison_ends_within_its_budget_and_resumes_with_the_epochs_it_began_with(
    glocal, pictures: Path, monkeypatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    words = ("compare", "--data", pictures, "--host", TINY, "--with", "cb", "--seeds", 1, "--budget", "9s", "-o", "out")
    began = time.monotonic()
    code, out, err = glocal(*words)
    assert code == 0, err
    assert time.monotonic() - began < 9 + 3
    assert "of 9s used" in out
    epochs = json.loads(Path("out/plan.json").read_text())["recipe"]["epochs"]
    Path("out/runs/cb-seed0/metrics.json").unlink()
    code, _, err = glocal(*words[:-3], "20s", *words[-2:], "--resume")
    assert code == 0, err
    stored = json.loads(Path("out/results.json").read_text())
    assert stored["recipe"]["epochs"] == epochs
    assert stored["seconds"] > 3  # the first part's time counts
    assert {run["metrics"]["steps"] for run in stored["runs"]} == {epochs * 4}


def test_tiny_runs_share_the_cores_and_give_what_single_runs_give(glocal, monkeypatch) -> None:
    words = ("compare", "--host", TINY, "--with", "cb", "--seeds", 1, "--epochs", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert glocal(*words, "-o", "both")[0] == 0
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert glocal(*words, "-o", "single")[0] == 0
    for name in ("host-seed0", "cb-seed0"):
        both, single = (load_file(Path(folder) / "runs" / name / "model.safetensors") for folder in ("both", "single"))
        assert all(torch.equal(both[key], single[key]) for key in both)


def test_train_eval_and_predict_go_hand_in_hand(glocal, pictures: Path) -> None:
    Path("r.yaml").write_text(write(recipe(epochs=4, batch=8, limit=None)).replace("patch_size: 2", "patch_size: 4"))
    changes = ["host.img_size=16", "optim.lr=0.01", "log_every=2"]
    code, out, err = glocal("train", "r.yaml", "--data", pictures, "-o", "run", *(f"--set={each}" for each in changes))
    assert code == 0, err
    assert "top-1" in out.splitlines()[-1]
    trained = json.loads(Path("run/metrics.json").read_text())
    code, out, _ = glocal("eval", "run", "--format", "json", "--per-class")
    figures = json.loads(out)
    assert code == 0
    assert figures[0]["top1"] == trained["top1"]
    assert [row["class"] for row in figures[1:]] == ["dark", "light"]
    (pictures / "light" / "broken.png").write_bytes(b"none")
    code, out, err = glocal(
        "predict", "run", pictures / "dark" / "00.png", pictures / "light", "--top", 1, "--format", "csv"
    )
    assert code == 2  # one of them could not be read
    assert "broken.png cannot be read" in err
    named = [line.split(",")[1] for line in out.splitlines()[1:]]
    assert len(named) == 25
    assert set(named) <= {"dark", "light"}


def test_recipes_lists_what_to_expect(glocal) -> None:
    code, out, _ = glocal("recipes", "deit_tiny_cifar100")
    assert code == 0
    assert "71.74 % top-1" in out
    assert glocal("recipes", "nothing-like-it")[0] == 2


def test_output_in_another_alphabet_lacks_letters_but_not_lines(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "glocal", "cost", "vit_tiny_patch16_224", "--with", "cb"]
    told = subprocess.run(words, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, check=False)
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) > 3
    assert b"+ cb" in told.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "nope"], "is neither a recipe file nor a recipe of glocal"),
        (["train", "digits/vit_local_ffn", "--set", "epoch=1"], "Did you mean 'epochs'"),
        (["train", "digits/vit_local_ffn", "--set", "data.name=missing"], "neither a folder"),
        (["train", "digits/vit_local_ffn", "--set", "host.name=vit_tinny_patch16_224"], "unknown model"),
        (["train", "digits/vit_local_ffn", "--set", "host.colour=red"], "does not take these arguments"),
        (["train", "digits/vit_local_ffn", "--set", "task=paint"], "it takes classify, detect, segment"),
        (["train", "digits/vit_local_ffn", "--set", "optim.name=zzz"], "Such as adamw"),
        (["train", "digits/vit_local_ffn", "--set", "epochs=1", "-o", "/dev/null/x"], "Choose another folder with -o"),
        (["train", "digits/vit_local_ffn", "--set", "data.batch_size=5000"], "do not fill one batch of 5000"),
        (["compare", "--data", "missing"], "neither a folder"),
        (["compare", "--with", "lief"], "Did you mean 'life'"),
        (["compare", "--host", "mixer_s16_224", "--with", "life", "--size", "224", "--epochs", "1"], "no attention"),
        (["compare", "--host", "", "--epochs", "1"], "unknown model ''"),
        (["compare", "--epochs", "1", "--budget", "5m"], "not both"),
        (["compare", "--budget", "soon"], "Write 90s, 10m"),
        (["compare", "--budget", "10 apples"], "Write 90s, 10m"),
        (["compare", "--budget", "-5m"], "Write 90s, 10m"),
        (["compare", "--budget", "0s"], "is no time at all"),
        (["compare", "--host", TINY, "--with", "cb", "--budget", "1s"], "a budget of 1s is too short"),
        (["eval", "missing"], "is not a file"),
        (["predict", "missing", "x.png"], "is not a file"),
    ],
)
def test_mistakes_end_in_one_message_and_leave_nothing_behind(
    glocal, tmp_path: Path, words: list[str], told: str
) -> None:
    code, _, err = glocal(*words)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    left = [each for each in tmp_path.rglob("*") if each.is_file() and each.name != ".lock"]
    assert not left


def _train(folder: Path) -> None:
    sys.argv = ["glocal", "train", str(folder / "r.yaml"), "-o", str(folder / "run"), "--resume"]
    main()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_asked_to_stop_saves_and_says_so(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "r.yaml").write_text(write(restless(epochs=400)))
    child = ready_server().Process(target=_train, args=(tmp_path,))
    child.start()
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) > 3):
        assert child.is_alive()
        time.sleep(0.05)
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join(60)
    assert child.exitcode == code
    state = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")
    assert state["step"] >= json.loads(log.read_text().splitlines()[-1])["step"]
