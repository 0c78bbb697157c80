"""Watching models with heads on their hosts, and rolling out what they predict densely."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from PIL import Image

from glocal import GlocalError, save
from glocal.explain import watch
from glocal.explain.asked import ask_for
from glocal.explain.methods import dense_maps, predicted
from glocal.explain.show import Picture, make
from glocal.explain.subject import Subject, open_subject
from glocal.heads.build import put_on
from glocal.lattice import Lattice
from glocal.recipes.reopen import reopen
from glocal.zoo import create_model
from tests.contract.cases import lively

TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
DETR = {"dim": 16, "heads": 2, "layers": 1, "hidden": 16, "queries": 7}
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


def subject(head: str, **options: int) -> Subject:
    torch.manual_seed(0)
    model = put_on(create_model("vit_tiny_patch16_224", **TINY), head, 3, **options)
    return Subject(head, lively(model).eval(), (64, 64), (0.5,) * 3, (0.5,) * 3, ("sea", "sand", "dog"))


def test_the_host_inside_a_segmenter_is_watched_on_its_lattice() -> None:
    segmenter = subject("linear")
    image = segmenter.tensor(PHOTO)
    with torch.no_grad():
        outside = segmenter.model(image)
        with watch(segmenter.model) as seen:
            assert torch.equal(segmenter.model(image), outside)
    assert [look.path for look in seen] == ["maps.host.blocks.0.attn", "maps.host.blocks.1.attn"]
    assert seen.lattices == [Lattice(8, 8, prefix=1)] * 2
    assert not seen[0].class_token  # a head takes patches


def test_detr_on_a_host_is_watched_host_first_and_head_beside() -> None:
    detector = subject("detr", **DETR)
    image = detector.tensor(PHOTO)
    with torch.no_grad():
        outside = detector.model(image)
        with watch(detector.model) as seen:
            inside = detector.model(image)
    assert all(torch.equal(outside[0][key], inside[0][key]) for key in outside[0])
    assert [look.group for look in seen] == ["self", "self", "head", "head", "head"]
    assert seen["decoder.0.cross_attn"].kept.shape == (1, 2, 7, 4)
    torch.testing.assert_close(seen["decoder.0.cross_attn"].kept.sum(dim=-1), torch.ones(1, 2, 7))


def test_a_segmenters_own_labels_choose_the_tokens() -> None:
    segmenter = subject("linear")
    with torch.no_grad():
        labels = segmenter.model(segmenter.tensor(PHOTO))[0].argmax(dim=0)
    maps = dense_maps(segmenter, PHOTO, ask_for())
    assert set(maps) == {"global", *(segmenter.label(int(each)) for each in labels.unique())}
    assert maps["global"].shape == (8, 8)


def test_a_detectors_own_boxes_choose_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = subject("detr", **DETR)
    found = [
        {
            "boxes": torch.tensor([[0.0, 0, 32, 32], [8, 8, 60, 60]]),
            "labels": torch.tensor([2, 1]),
            "scores": torch.tensor([0.9, 0.1]),
        }
    ]
    genuine = detector.model.forward

    def sure(images: torch.Tensor) -> object:  # an untrained detector is sure of nothing
        genuine(images)
        return found

    monkeypatch.setattr(detector.model, "forward", sure)
    assert set(dense_maps(detector, PHOTO, ask_for())) == {"global", "dog"}


def test_nothing_found_is_said_in_words() -> None:
    detector = subject("detr", **DETR)
    with pytest.raises(GlocalError, match="finds no object"):
        predicted(detector, detector.tensor(PHOTO), sure=1.1)


def test_a_segmentation_run_opens_with_its_head(tmp_path: Path) -> None:
    segmenter = subject("linear")
    save(segmenter.model, tmp_path / "model.safetensors")
    (tmp_path / "metrics.json").write_text(
        json.dumps({"classes": ["sea", "sand", "dog"], "mean": [0.5] * 3, "std": [0.5] * 3})
    )
    options = ", ".join(f"{key}: {value}" for key, value in TINY.items())
    recipe = f"""
        task: segment
        host: {{name: vit_tiny_patch16_224, {options}}}
        head: {{name: linear}}
        data: {{name: nowhere, size: 64}}
        epochs: 1
    """
    (tmp_path / "recipe.yaml").write_text(dedent(recipe))
    run = open_subject(str(tmp_path), reopen=reopen)
    image = run.tensor(PHOTO)
    with torch.no_grad():
        assert torch.equal(run.model(image), segmenter.model(image))
    shown = make("dense", [run, segmenter], [Picture("photo", PHOTO)], ask_for())
    assert "linear/global" in shown[0].arrays
