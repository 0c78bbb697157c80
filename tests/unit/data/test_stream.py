"""Shards are read as a stream, and an epoch entered in the middle goes on with the same images."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glocal.data.feed import feed
from glocal.data.order import Order
from glocal.data.settings import PRESETS, DataSettings
from glocal.data.sources import load
from glocal.data.stream import StreamFeed
from glocal.errors import GlocalError

pytest.importorskip("webdataset")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    draw, splits = np.random.default_rng(0), {}
    for split, count in (("train", 24), ("validation", 10)):
        files = [f"{split}-{i}.tar" for i in range(2)]
        for i, file in enumerate(files):
            with tarfile.open(tmp_path / file, "w") as tar:
                for j in range(count // 2):
                    picture = io.BytesIO()
                    Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(picture, "PNG")
                    _add(tar, f"{i}{j:03}.png", picture.getvalue())
                    _add(tar, f"{i}{j:03}.cls", str(j % 3).encode())
        splits[split] = {"name": split, "num_samples": count, "filenames": files, "shard_lengths": [count // 2] * 2}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    return tmp_path


def _feed(root: Path) -> StreamFeed:
    settings = DataSettings("wds/set", root=str(root), classes=3, batch_size=6, augment=PRESETS["deit"], workers=1)
    pair = load(settings)
    made = feed(pair.train, pair.val, settings, Order(len(pair.train), 6, seed=1), torch.device("cpu"), (16, 16))
    assert isinstance(made, StreamFeed)
    return made


def test_a_stream_can_be_entered_in_the_middle_of_an_epoch(shards: Path) -> None:
    whole = list(_feed(shards).train(1))
    assert len(whole) == 4
    rest = list(_feed(shards).train(1, start=2))
    for (first,), (second,) in zip(whole[2:], rest, strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])


def test_every_validation_image_of_a_stream_is_seen_once(shards: Path) -> None:
    labels = torch.cat([labels for _, labels in _feed(shards).val()])
    assert torch.bincount(labels).tolist() == [4, 4, 2]


def test_a_stream_without_classes_or_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match=r"Give data\.classes"):
        load(DataSettings("wds/set", root=str(tmp_path)))
    with pytest.raises(GlocalError, match="cannot be opened"):
        load(DataSettings("wds/set", root=str(tmp_path), classes=3))
