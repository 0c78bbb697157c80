"""The page's desk: what it answers, what it refuses, and what it keeps open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from glocal import LIFE, GlocalError, save
from glocal.app import desk as module
from glocal.app import start
from glocal.app.desk import SIDE, Desk, Question, served
from glocal.zoo import create_model

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    save(create_model("vit_tiny_patch16_224", **TINY), folder / "runs/plain/model.safetensors")
    save(create_model("vit_tiny_patch16_224", LIFE(), **TINY), folder / "runs/deep/life/model.safetensors")
    return folder


@pytest.fixture
def desk(folder: Path) -> Desk:
    return Desk(served([], folder / "runs"))


BOTH = ("runs/plain", "runs/deep/life")


def test_runs_are_found_however_deep(folder: Path) -> None:
    assert sorted(served([], folder / "runs")) == ["runs/deep/life", "runs/plain"]
    given = served([str(folder / "runs/plain"), "deit_tiny_patch16_224"], None)
    assert list(given) == ["plain", "deit_tiny_patch16_224"]


@pytest.mark.parametrize("method", ["rollout", "gradient", "heads"])
def test_two_models_answer_side_by_side(desk: Desk, folder: Path, method: str) -> None:
    panels = desk.answer(Question(BOTH, folder / "photo.png", method))
    assert [panel.title for panel in panels] == ["plain", "life"]
    for panel in panels:
        assert panel.picture.size == (SIDE, SIDE)
        assert sum(panel.predictions.values()) == pytest.approx(1)
        assert "GMACs" in panel.cost


def test_a_place_that_looks_changes_the_picture(desk: Desk, folder: Path) -> None:
    def picture(place: tuple[float, float] | None) -> Image.Image:
        return desk.answer(Question(BOTH[:1], folder / "photo.png", place=place))[0].picture

    assert ImageChops.difference(picture(None), picture((0.1, 0.1))).getbbox() is not None
    assert ImageChops.difference(picture((0.9, 0.1)), picture((0.1, 0.1))).getbbox() is not None


def test_layer_and_head_are_chosen_and_checked(desk: Desk, folder: Path) -> None:
    photo = folder / "photo.png"
    assert desk.layers("runs/plain") == 2
    desk.answer(Question(BOTH[:1], photo, "heads", layer=0, head=1))
    with pytest.raises(GlocalError, match="layers 0 to 1"):
        desk.answer(Question(BOTH[:1], photo, "heads", layer=5))
    with pytest.raises(GlocalError, match="heads 0 to 1"):
        desk.answer(Question(BOTH[:1], photo, "heads", head=5))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret",
        "~/x",
        "hf-hub:someone/model",
        "runs/plain/model.safetensors",
        "model.safetensors",
        "runs\\plain",
    ],
)
def test_a_visitor_may_name_models_but_no_places(desk: Desk, folder: Path, name: str) -> None:
    with pytest.raises(GlocalError, match="is not served here"):
        desk.answer(Question([name], folder / "photo.png"))


def test_a_folder_that_is_called_like_a_model_is_still_a_place(
    desk: Desk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(create_model("vit_tiny_patch16_224", **TINY), tmp_path / "private/model.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GlocalError, match="is not served here"):
        desk.answer(Question(["private"], folder / "photo.png"))


def test_timms_names_with_variants_open_where_allowed(desk: Desk, folder: Path) -> None:
    panels = desk.answer(Question(["vit_tiny_patch16_224+cbs"], folder / "photo.png"))
    assert panels[0].title == "vit_tiny_patch16_224 + cbs (random weights)"
    closed = Desk(desk.served, names=False)
    with pytest.raises(GlocalError, match="is not served here"):
        closed.answer(Question(["vit_tiny_patch16_224"], folder / "photo.png"))


def test_only_a_few_models_stay_open(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 1)
    desk.answer(Question(BOTH, folder / "photo.png"))
    assert list(desk._open) == ["runs/deep/life"]


def test_no_model_and_no_method_are_refused(desk: Desk, folder: Path) -> None:
    with pytest.raises(GlocalError, match="no model is chosen"):
        desk.answer(Question(["", " "], folder / "photo.png"))
    with pytest.raises(GlocalError, match="Did you mean 'rollout'"):
        desk.answer(Question(BOTH, folder / "photo.png", "rolout"))


def test_a_page_for_others_must_serve_something_and_a_missing_run_is_known_first(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="gradio is not installed; pip install 'glocal[app]'")
    with pytest.raises(GlocalError, match="nothing is served"):
        start([], None, "0.0.0.0", None, False, False, print)
    with pytest.raises(GlocalError, match="neither a file nor a run folder"):
        start(["runs/gone"], None, "127.0.0.1", None, False, False, print)
    with pytest.raises(GlocalError, match="is not a folder"):
        start([], tmp_path / "gone", "127.0.0.1", None, False, False, print)


def test_without_gradio_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(GlocalError, match=r"glocal\[app\]"):
        start([], None, "127.0.0.1", None, False, False, print)
