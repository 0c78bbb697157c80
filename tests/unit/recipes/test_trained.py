"""What a finished run says of other images: whose classes they are, which of them are measured, how they are read."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glocal.cli import main
from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from glocal.recipes.evaluate import evaluate
from glocal.recipes.lines import write
from glocal.recipes.trained import open_trained, predict
from glocal.store import save
from glocal.zoo import create_model
from tests.unit.train.tiny import recipe

HOST = {"img_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 3}


def _run(folder: Path, classes: tuple[str, ...], data: object, channels: int = 3, size: int = 8) -> str:
    model = create_model(
        "vit_tiny_patch16_224", num_classes=len(classes), in_chans=channels, **{**HOST, "img_size": size}
    )
    save(model, folder / "model.safetensors")
    (folder / "recipe.yaml").write_text(write(replace(recipe(), data=DataSettings(name=str(data)))))
    facts = {"classes": list(classes), "mean": [0.5] * channels, "std": [0.25] * channels}
    (folder / "metrics.json").write_text(json.dumps(facts))
    return str(folder)


def _pictures(root: Path, *names: str, count: int = 10, side: int = 8) -> Path:
    draw = np.random.default_rng(0)
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.fixture
def run(tmp_path: Path) -> str:
    return _run(tmp_path / "run", ("cat", "dog"), _pictures(tmp_path / "set", "cat", "dog"))


def test_images_of_other_classes_are_refused_by_name(run: str, tmp_path: Path) -> None:
    other = str(_pictures(tmp_path / "other", "cat", "cow"))
    with pytest.raises(GlocalError, match=r"only the model has dog; only .*other has cow"):
        evaluate(run, other, 8)
    labels = np.arange(6) % 2
    np.savez(tmp_path / "x.npz", images=np.zeros((6, 8, 8, 3), np.uint8), labels=labels, classes=["dog", "cat"])
    with pytest.raises(GlocalError, match="class 0 is dog, in training it was cat"):
        evaluate(run, str(tmp_path / "x.npz"), 8)


def test_a_run_that_recorded_no_names_compares_the_number_of_classes(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", ("0", "1"), "digits")
    (tmp_path / "run" / "metrics.json").write_text("{}")
    told: list[str] = []
    assert evaluate(run, str(_pictures(tmp_path / "two", "cat", "cow")), 8, told.append)[0]["images"] == 20
    assert "the model's classes have no names; they are taken in this order: cat, cow" in told
    with pytest.raises(GlocalError, match="knows 2 classes, .*three has 3"):
        evaluate(run, str(_pictures(tmp_path / "three", "cat", "cow", "dog")), 8)


def test_a_folder_given_is_measured_whole_unless_it_has_a_validation_part(run: str, tmp_path: Path) -> None:
    told: list[str] = []
    other = _pictures(tmp_path / "other", "cat", "dog")
    assert evaluate(run, str(other), 8, told.append)[0]["images"] == 20
    assert "all 20 images" in told[0]
    assert evaluate(run, None, 8, told.append)[0]["images"] == 4
    assert "4 of 20 images are held out" in told[1]
    _pictures(tmp_path / "parted" / "train", "cat", "dog")
    _pictures(tmp_path / "parted" / "val", "cat", "dog", count=3)
    assert evaluate(run, str(tmp_path / "parted"), 8)[0]["images"] == 6
    shutil.rmtree(tmp_path / "parted" / "train")
    assert evaluate(run, str(tmp_path / "parted"), 8)[0]["images"] == 6
    evaluate(run, str(tmp_path / "set"), 8, told.append)
    assert "the model learned from most of these images" in told[3]


def test_an_npz_given_is_measured_whole_whatever_lies_beside_it(run: str, tmp_path: Path) -> None:
    arrays = {"images": np.zeros((10, 8, 8, 3), np.uint8), "labels": np.arange(10) % 2, "classes": ["cat", "dog"]}
    np.savez(tmp_path / "train.npz", **arrays)
    np.savez(tmp_path / "test.npz", **{**arrays, "images": arrays["images"][:4], "labels": arrays["labels"][:4]})
    assert evaluate(run, str(tmp_path / "train.npz"), 8)[0]["images"] == 10
    assert evaluate(run, str(tmp_path), 8)[0]["images"] == 4


def test_eval_shows_what_is_to_be_known_of_the_images(run: str, tmp_path: Path, monkeypatch, capfd) -> None:
    other = _pictures(tmp_path / "other", "cat", "dog")
    monkeypatch.setattr(sys, "argv", ["glocal", "eval", run, "--data", str(other), "--format", "json"])
    with pytest.raises(SystemExit):
        main()
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["images"] == 20
    assert "measured on all 20 images" in err


@pytest.mark.parametrize("size", [8, 112])  # in memory, from files
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_images_are_brought_to_what_the_model_takes(tmp_path: Path, channels: int, size: int) -> None:
    run = _run(tmp_path / "run", ("0", "1"), "digits", channels, size)
    assert evaluate(run, str(_pictures(tmp_path / "set", "0", "1")), 8)[0]["images"] == 20
    for shape in ((6, 8, 8), (6, 8, 8, 3)):
        np.savez(tmp_path / "x.npz", images=np.zeros(shape, np.uint8), labels=np.arange(6) % 2)
        assert evaluate(run, str(tmp_path / "x.npz"), 8)[0]["images"] == 6
    (tmp_path / "run" / "metrics.json").unlink()
    assert len(predict(run, [tmp_path / "set"], 1)[0]) == 20


def test_no_name_is_not_taken_for_the_images_of_the_run(run: str) -> None:
    with pytest.raises(GlocalError, match="data '' is neither a folder"):
        evaluate(run, "", 8)


def test_images_none_of_which_can_be_read_are_refused(tmp_path: Path) -> None:
    for size in (8, 112):
        run = _run(tmp_path / f"run{size}", ("cat", "dog"), "digits", size=size)
        root = _pictures(tmp_path / f"set{size}", "cat", "dog", count=2)
        for file in root.rglob("*.png"):
            file.write_bytes(b"none")
        with pytest.raises(GlocalError, match="none of 4 images"):
            evaluate(run, str(root), 8)


@pytest.mark.parametrize(("text", "told"), [('{"top1": 3', "is damaged"), ("[1]", "holds a list"), ("", "is damaged")])
def test_damaged_metrics_are_told(run: str, text: str, told: str) -> None:
    (Path(run) / "metrics.json").write_text(text)
    with pytest.raises(GlocalError, match=rf"metrics\.json {told}"):
        open_trained(run)


def test_predict_reads_every_kind_of_image_and_names_those_too_large(run: str, tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "mixed"
    root.mkdir()
    picture = Image.fromarray(np.full((8, 8, 3), 90, np.uint8))
    for end in ("webp", "BMP", "gif", "tiff"):
        picture.save(root / f"x.{end}")
    rows, broken = predict(run, [root], 1)
    assert (len(rows), broken) == (4, [])
    picture.resize((40, 40)).save(root / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    rows, broken = predict(run, [root], 1)
    assert len(rows) == 4
    assert "bomb.png cannot be read" in broken[0]


def test_predict_leaves_what_is_hidden_in_a_folder_and_takes_no_folder_for_an_image(run: str, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    (root / "folder.png").mkdir(parents=True)
    (root / ".cache").mkdir()
    picture = Image.new("RGB", (8, 8))
    for name in ("a.png", "folder.png/b.png", ".hidden.png", ".cache/c.png"):
        picture.save(root / name)
    (root / "._a.png").write_bytes(b"what a Mac adds to archives")
    rows, broken = predict(run, [root], 1)
    assert [Path(row["image"]).name for row in rows] == ["a.png", "b.png"]
    assert broken == []


def test_predict_tells_of_a_missing_place_before_it_computes(run: str, tmp_path: Path, monkeypatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    monkeypatch.setattr("glocal.recipes.trained._image", lambda *_: pytest.fail("an image was read"))
    with pytest.raises(GlocalError, match=r"gone\.png does not exist"):
        predict(run, [tmp_path / "a.png", tmp_path / "gone.png"], 1)


def test_predict_sees_deep_greys_as_it_sees_their_eight_bits(run: str, tmp_path: Path) -> None:
    shades = np.random.default_rng(0).integers(0, 256, (8, 8))
    Image.fromarray(shades.astype(np.uint8)).save(tmp_path / "8.png")
    Image.fromarray((shades * 257).astype(np.uint16)).save(tmp_path / "16.png")
    shallow, deep = (predict(run, [tmp_path / name], 2)[0] for name in ("8.png", "16.png"))
    assert [row["percent"] for row in deep] == [row["percent"] for row in shallow]
    assert torch.isfinite(torch.tensor([row["percent"] for row in deep])).all()
