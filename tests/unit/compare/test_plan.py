"""A comparison is fair, and fits the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glocal.compare.plan import fitting_patch, plan
from glocal.errors import GlocalError


def _folder(root: Path, side: int, count: int = 8, wide: int | None = None) -> Path:
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 256, (side, wide or side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_every_run_differs_from_the_host_in_its_mechanisms_and_seed_alone() -> None:
    made, _ = plan(variants=["life", "local-ffn+cb"], seeds=2)
    runs = list(made.runs())
    assert [(variant.name, seed) for variant, seed, _ in runs] == [
        (name, seed) for seed in (0, 1) for name in ("host", "life", "local-ffn+cb")
    ]
    for variant, seed, recipe in runs:
        assert recipe.seed == seed
        assert recipe.mechanisms == variant.mechanisms
        assert (recipe.data, recipe.optim, recipe.epochs, recipe.host) == (
            made.recipe.data,
            made.recipe.optim,
            made.recipe.epochs,
            made.recipe.host,
        )


@pytest.mark.parametrize(("size", "patch"), [(8, 2), (16, 2), (32, 4), (64, 8), (96, 12), (28, 4), (224, 16)])
def test_patches_fit_the_image_and_leave_a_lattice(size: int, patch: int) -> None:
    assert fitting_patch(size) == patch
    assert size % patch == 0


@pytest.mark.parametrize(("side", "size"), [(32, 32), (50, 48), (70, 64), (300, 224), (9, 8)])
def test_the_size_is_what_the_images_have(tmp_path: Path, side: int, size: int) -> None:
    made, _ = plan(str(_folder(tmp_path / "set", side)), seeds=1)
    assert made.recipe.data.size == size
    assert ("brought to" in " ".join(made.notes)) == (side != size)


def test_long_images_and_small_lattices_are_warned_of(tmp_path: Path) -> None:
    made, _ = plan(str(_folder(tmp_path / "long", 32, wide=90)), seeds=1)
    assert "the ends are cut off" in made.notes[0]
    made, _ = plan(str(_folder(tmp_path / "set", 32)), seeds=1, patch=16)
    assert "only 2x2 patches" in made.notes[-1]
    with pytest.raises(GlocalError, match="cannot be cut into patches of 5"):
        plan(str(tmp_path / "set"), patch=5)


@pytest.mark.parametrize(
    ("host", "arguments"),
    [
        ("pvt_v2_b0", {}),
        ("mixer_s16_224", {"img_size": 32}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4}),
    ],
)
def test_a_host_is_asked_only_for_what_it_takes(host: str, arguments: dict, tmp_path: Path) -> None:
    made, _ = plan(str(_folder(tmp_path / "set", 32)), host=host, seeds=1)
    assert made.recipe.host.arguments == arguments


def test_a_host_built_for_a_size_is_shown_images_of_that_size(tmp_path: Path) -> None:
    place = str(_folder(tmp_path / "set", 40, wide=60))
    host = "vit_tiny_patch16_224(img_size=(32,48),depth=1,embed_dim=24,num_heads=2)"
    made, _ = plan(place, host, seeds=1)
    assert made.recipe.data.size == (32, 48)
    assert made.recipe.host.arguments["patch_size"] == 4
    assert made.notes == ("images of 40 pixels are brought to 32x48",)  # 2 : 3, as the images are
    assert plan(place, host.replace("(32,48)", "32"), seeds=1)[0].recipe.data.size == 32
    with pytest.raises(GlocalError, match="--size is 64, but the host is to have img_size="):
        plan(place, host, seeds=1, size=64)
    with pytest.raises(GlocalError, match="img_size is 'big'"):
        plan(place, host.replace("(32,48)", "'big'"), seeds=1)


def test_long_images_in_an_npz_are_warned_of_too(tmp_path: Path) -> None:
    images = np.zeros((20, 16, 32, 3), np.uint8)
    np.savez(tmp_path / "wide.npz", images=images, labels=np.arange(20) % 2)
    assert "2.0 times the shorter, so the ends are cut off" in plan(str(tmp_path / "wide.npz"), seeds=1)[0].notes[0]


def test_places_are_written_so_that_they_are_found_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    _folder(tmp_path / "set", 32)
    monkeypatch.chdir(tmp_path)
    made, _ = plan("set", seeds=1)
    assert made.recipe.data.name == str(tmp_path / "set")
    (tmp_path / "digits").mkdir()
    assert plan("digits", seeds=1)[0].recipe.data.name == "digits"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": 0.0}, "must be above 0"),
        ({"lr": float("nan")}, "must be above 0"),
        ({"data": ""}, "data '' is neither a folder"),
        ({"batch": 2000}, "only 1347 training"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(options: dict, told: str) -> None:
    with pytest.raises(GlocalError, match=told):
        plan(**options)


def test_hosts_are_read_with_options() -> None:
    made, _ = plan(host="vit_tiny_patch16_224(depth=3, embed_dim=24)", variants=["cb"])
    assert made.recipe.host.arguments == {"depth": 3, "embed_dim": 24, "img_size": 8, "patch_size": 2}
    with pytest.raises(GlocalError, match="is not understood. Write name"):
        plan(host="vit_tiny_patch16_224(depth=")
    with pytest.raises(GlocalError, match="two variants are the same"):
        plan(variants=["life", "life"])
