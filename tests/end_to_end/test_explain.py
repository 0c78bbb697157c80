"""`glocal explain` as a person runs it: pictures in a folder, or one clear line and exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glocal import LIFE, save
from glocal.cli import main
from glocal.zoo import create_model

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 4}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    for name in ("one.png", "two.jpg"):
        Image.fromarray(pixels).save(tmp_path / name)
    save(create_model("vit_tiny_patch16_224", **TINY), "plain.safetensors")
    save(create_model("vit_tiny_patch16_224", LIFE(), **TINY), "run/model.safetensors")
    return tmp_path


def glocal(*words: str, monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["glocal", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_a_file_and_a_run_are_shown_side_by_side(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "explain",
        "plain.safetensors",
        "one.png",
        "two.jpg",
        "--compare",
        "run",
        "--method",
        "rollout",
        "-o",
        "out",
    )
    assert glocal(*words, "--method", "entropy", monkeypatch=monkeypatch) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "entropy.npz",
        "entropy.png",
        "rollout.npz",
        "rollout.png",
    ]
    with np.load("out/rollout.npz") as arrays:
        assert sorted(arrays.files) == ["one/plain", "one/run", "two/plain", "two/run"]
        assert all(arrays[name].shape == (4, 4) for name in arrays.files)
    assert capsys.readouterr().out.split() == [
        str(Path("out") / n) for n in ("rollout.png", "rollout.npz", "entropy.png", "entropy.npz")
    ]


@pytest.mark.parametrize(
    "words, message",
    [
        (("plain.safetensors", "nowhere.png"), "nowhere.png is not there"),
        (("plain.safetensors", "plain.safetensors"), "not an image"),
        (("nowhere/run", "one.png"), "neither a file nor a run folder"),
        (("deit_tiny_patch16_22", "one.png"), "Did you mean"),
        (("plain.safetensors", "one.png", "--method", "rolout"), "Did you mean 'rollout'"),
        (("plain.safetensors", "one.png", "--method", "heads", "--head", "7"), "heads 0 to 1"),
        (("plain.safetensors", "one.png", "--method", "dense", "--box", "cat"), "NAME:LEFT"),
        (("plain.safetensors", "one.png", "--with", "life"), "trained already"),
        (("one.png", "one.png"), "not a whole safetensors file"),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert glocal("explain", *words, "-o", "out", monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("glocal: ")
    assert "Traceback" not in said
    assert not Path("out").exists()
