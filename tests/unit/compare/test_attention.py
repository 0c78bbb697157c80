"""The report shows where each variant looks, and leaves out what has no attention."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

from glocal.compare.attention import _one_of_each, drawn, strips
from glocal.data.images import MemoryImages, Pair
from glocal.data.sources import digits
from glocal.mechanisms import named
from glocal.store import save
from glocal.zoo import create_model
from tests.unit.train.tiny import HOST


def test_every_variant_with_attention_gets_a_strip_of_pictures(tmp_path: Path) -> None:
    pair = digits()
    for name, text in (("host", ""), ("life", "life")):
        model = create_model("vit_tiny_patch16_224", *(named(text) if text else ()), num_classes=10, in_chans=1, **HOST)
        save(model, tmp_path / f"{name}.safetensors")
    plain = create_model("test_resnet", num_classes=10, in_chans=1)
    save(plain, tmp_path / "resnet.safetensors")
    found = strips({n: tmp_path / f"{n}.safetensors" for n in ("host", "life", "resnet")}, pair, (8, 8), count=3)
    assert [(name, len(pictures)) for name, pictures in found] == [("image", 3), ("host", 3), ("life", 3)]
    original, host = (_open(found[i][1][0]) for i in (0, 1))
    assert original.size == host.size == (112, 112)
    assert original.tobytes() != host.tobytes()
    assert drawn(found).count("<img") == 9


def test_images_are_taken_from_every_class_in_turn() -> None:
    assert _one_of_each(torch.tensor([5, 5, 5, 1, 1, 2]), 4).tolist() == [0, 3, 5, 1]


def test_a_comparison_of_hosts_without_attention_shows_no_strip(tmp_path: Path) -> None:
    plain = create_model("test_resnet", num_classes=10, in_chans=1)
    save(plain, tmp_path / "resnet.safetensors")
    pair = digits()
    assert isinstance(pair.val, MemoryImages)
    assert strips({"host": tmp_path / "resnet.safetensors"}, Pair(pair.train, replace(pair.val)), (8, 8)) == []


def _open(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
