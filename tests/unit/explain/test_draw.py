"""Pictures: one scale on every side, arrays beside them, names that cannot clash."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glocal import EarlyMLP
from glocal.errors import GlocalError
from glocal.explain.asked import ask_for, open_pictures
from glocal.explain.draw import coloured, overlay
from glocal.explain.methods import density
from glocal.explain.show import Picture, make, show
from glocal.explain.subject import Subject, open_subject, subjects
from glocal.zoo import create_model


@pytest.fixture(scope="module")
def tiny() -> Subject:
    torch.manual_seed(0)
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 4}
    model = create_model("vit_tiny_patch16_224", **arguments)
    half = (0.5, 0.5, 0.5)
    return Subject("tiny", model.eval(), (32, 32), half, half, ("ant", "bee", "cat", "dog"))


PHOTO = Picture("photo", Image.fromarray(np.random.default_rng(1).integers(0, 255, (48, 64, 3), dtype=np.uint8)))


def test_equal_values_get_equal_colours_whatever_stands_beside_them() -> None:
    flat = Image.new("RGB", (16, 16), (128, 128, 128))
    left = overlay(flat, torch.full((2, 2), 0.5), 0.0, 1.0)
    right = overlay(flat, torch.tensor([[0.5, 0.5], [0.5, 1.0]]), 0.0, 1.0)
    assert left.getpixel((0, 0)) == right.getpixel((0, 0))
    assert left.getpixel((15, 15)) != right.getpixel((15, 15))


def test_a_map_without_spread_is_drawn_too() -> None:
    overlay(Image.new("RGB", (8, 8)), torch.ones(2, 2), 1.0, 1.0)


def test_density_compares_maps_of_any_size() -> None:
    assert density(torch.full((7, 7), 0.02)).mean().item() == pytest.approx(1)
    assert density(torch.zeros(2, 2)).isfinite().all()


def test_labels_are_painted_and_void_is_white() -> None:
    assert coloured(torch.tensor([[0, 255]])).getpixel((1, 0)) == (255, 255, 255)


@pytest.mark.parametrize("method", ["rollout", "gradient", "heads", "query", "entropy", "distance"])
def test_every_method_writes_a_picture_and_its_arrays(method: str, tiny: Subject, tmp_path: Path) -> None:
    paths = show(method, [tiny, tiny], [PHOTO], ask_for(), tmp_path)
    assert {path.suffix for path in paths} == {".png", ".npz"}
    for path in paths:
        if path.suffix == ".png":
            assert min(Image.open(path).size) > 100
        else:
            with np.load(path) as arrays:
                assert arrays.files
                assert all(np.isfinite(arrays[name]).all() for name in arrays.files)
    assert not list(tmp_path.glob("*.part"))


def test_the_array_is_what_was_measured(tiny: Subject, tmp_path: Path) -> None:
    from glocal.explain.rollout import looked_at, rollout
    from glocal.explain.watch import watch

    show("rollout", [tiny], [PHOTO], ask_for(), tmp_path)
    with torch.no_grad(), watch(tiny.model) as seen:
        tiny.model(tiny.tensor(PHOTO.image))
    lattice = seen.lattices[0]
    assert lattice is not None
    expected = density(looked_at(rollout(seen.maps), lattice)[0])
    with np.load(tmp_path / "rollout.npz") as arrays:
        np.testing.assert_allclose(arrays["photo/tiny"], expected.numpy(), rtol=1e-5)


def test_layers_keep_their_numbers_where_early_ones_have_no_attention() -> None:
    torch.manual_seed(0)
    model = create_model(
        "vit_tiny_patch16_224", EarlyMLP(layers="0"), img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2
    )
    half = (0.5, 0.5, 0.5)
    late = Subject("late", model.eval(), (32, 32), half, half)
    entropy = make("entropy", [late], [PHOTO], ask_for())[0].arrays["late/mean"]
    assert entropy.isnan().tolist() == [True, False, False]
    assert set(make("query", [late], [PHOTO], ask_for())[0].arrays) == {"layer1", "layer2"}


def test_a_place_that_looks_changes_the_map(tiny: Subject) -> None:
    by_class = make("rollout", [tiny], [PHOTO], ask_for())[0].arrays["photo/tiny"]
    corner = make("rollout", [tiny], [PHOTO], ask_for(place="0,0"))[0].arrays["photo/tiny"]
    assert corner.argmax() == 0  # a token keeps most of itself
    assert not torch.allclose(by_class, corner)


def test_gradients_leave_no_trace_in_the_model(tiny: Subject) -> None:
    frozen = copy.deepcopy(tiny.model).requires_grad_(False)  # as a folded model is
    assert make("gradient", [replace(tiny, model=frozen)], [PHOTO], ask_for())
    make("gradient", [tiny], [PHOTO], ask_for(target=2))
    assert all(each.grad is None for each in tiny.model.parameters())


def test_dense_roll_out_from_boxes_and_labels(tiny: Subject, tmp_path: Path) -> None:
    boxes = make("dense", [tiny], [PHOTO], ask_for(boxes=["bug:8,0,40,24", "bug:30,30,40,40", "leaf:20,20,50,48"]))[0]
    assert set(boxes.arrays) == {"tiny/global", "tiny/bug", "tiny/leaf"}
    labels = np.zeros((48, 64), np.uint8)
    labels[:24] = 2
    Image.fromarray(labels).save(tmp_path / "labels.png")
    named = make("dense", [tiny], [PHOTO], ask_for(labels=tmp_path / "labels.png"))[0]
    assert set(named.arrays) == {"tiny/global", "tiny/ant", "tiny/cat"}


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"layer": 9}, "layers 0 to 1"),
        ({"head": 9}, "heads 0 to 1"),
        ({"fusion": "meen"}, "Did you mean 'mean'"),
        ({"discard": 1.5}, "share"),
        ({"place": "2,2"}, "not on the image"),
        ({"place": "here"}, "ROW,COLUMN"),
        ({"boxes": ["cat"]}, "NAME:LEFT"),
        ({"boxes": ["cat:5,5,1,1"]}, "no area"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(asked: dict[str, object], words: str, tiny: Subject) -> None:
    from glocal.explain.methods import head_maps

    with pytest.raises(GlocalError, match=words):
        head_maps(tiny, tiny.tensor(PHOTO.image), ask_for(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method, words",
    [
        ("rolout", "Did you mean 'rollout'"),
        ("scales", "no CB_S"),
        ("offsets", "no deformable"),
        ("dense", "label map or boxes"),
    ],
)
def test_methods_that_do_not_fit_say_why(method: str, words: str, tiny: Subject) -> None:
    with pytest.raises(GlocalError, match=words):
        make(method, [tiny], [PHOTO], ask_for())


def test_a_class_that_is_not_there_is_refused(tiny: Subject) -> None:
    with pytest.raises(GlocalError, match="classes 0 to 3"):
        make("gradient", [tiny], [PHOTO], ask_for(target=4))


def test_images_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        PHOTO.image.save(tmp_path / folder / "x.png")
    assert [each.name for each in open_pictures([tmp_path / "a/x.png", tmp_path / "b/x.png"])] == ["x-1", "x-2"]


# Models by name, by file, by run.


def test_a_name_with_variants_opens_each() -> None:
    opened = subjects("vit_tiny_patch16_224", ["cbs"])
    assert [each.name for each in opened] == ["vit_tiny_patch16_224", "vit_tiny_patch16_224 + cbs"]
    assert opened[0].size == (224, 224)
    assert opened[0].note == "random weights"
    assert make("scales", opened, [PHOTO], ask_for())[0].arrays["vit_tiny_patch16_224 + cbs/mean"].shape == (12,)


def test_a_saved_file_and_a_run_folder_open_with_their_own_manners(tiny: Subject, tmp_path: Path) -> None:
    import json

    from glocal.store import save

    save(tiny.model, tmp_path / "run/model.safetensors")
    assert open_subject(str(tmp_path / "run/model.safetensors")).size == (32, 32)
    metrics = {"classes": ["a", "b", "c", "d"], "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (tmp_path / "run/metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "run/recipe.yaml").write_text("data: {size: 32}\n")
    run = open_subject(str(tmp_path / "run"))
    assert (run.name, run.mean, run.std, run.label(1)) == ("run", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "b")
    predicted = run.predict(run.tensor(PHOTO.image), 4)
    assert {name for name, _ in predicted} == {"a", "b", "c", "d"}
    assert sum(share for _, share in predicted) == pytest.approx(1)
    with pytest.raises(GlocalError, match="trained already"):
        open_subject(str(tmp_path / "run"), variant="life")


@pytest.mark.parametrize(
    "text, words",
    [
        ("deit_tiny_patch16_244", "Did you mean"),
        ("runs/nowhere", "neither a file nor a run folder"),
        ("nowhere.safetensors", "neither a file nor a run folder"),
    ],
)
def test_models_that_are_not_there_are_refused(text: str, words: str) -> None:
    with pytest.raises(GlocalError, match=words):
        open_subject(text)


def test_a_folder_that_is_no_run_and_a_run_cut_short_are_refused(tiny: Subject, tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match=r"holds no model\.safetensors"):
        open_subject(str(tmp_path))
    from glocal.store import save

    save(tiny.model, tmp_path / "model.safetensors")
    (tmp_path / "metrics.json").write_text('{"classes": [')
    with pytest.raises(GlocalError, match="cut short"):
        open_subject(str(tmp_path))


def test_a_grey_model_gets_grey_pictures_and_odd_channels_are_refused(tiny: Subject) -> None:
    assert replace(tiny, mean=(0.5,), std=(0.5,)).tensor(PHOTO.image).shape == (1, 1, 32, 32)
    with pytest.raises(GlocalError, match="5 channels"):
        replace(tiny, mean=(0.5,) * 5, std=(0.5,) * 5).tensor(PHOTO.image)
