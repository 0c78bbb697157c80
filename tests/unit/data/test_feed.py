"""Batches of any epoch can be entered at any step, and files are read alike by any number of workers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from glocal.data.feed import FileFeed, MemoryFeed, evaluation_transform, feed, training_transform
from glocal.data.images import MemoryImages
from glocal.data.order import Order
from glocal.data.settings import PRESETS, Augment, DataSettings
from glocal.data.sources import digits, load
from glocal.errors import GlocalError
from glocal.train.tasks.classify import Classify
from tests.unit.train.tiny import recipe


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(12):
            Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / name / f"{i:02}.png")
    return tmp_path


def _memory(**order) -> MemoryFeed:
    pair = digits()
    assert isinstance(pair.train, MemoryImages)
    assert isinstance(pair.val, MemoryImages)
    settings = DataSettings(augment=PRESETS["shift"], batch_size=order.get("batch", 64))
    return MemoryFeed(pair.train, pair.val, settings, Order(len(pair.train), **{"batch": 64, **order}))


def _files(root: Path, workers: int = 0, **changes) -> FileFeed:
    settings = DataSettings(name=str(root), augment=PRESETS["deit"], batch_size=4, workers=workers, **changes)
    pair = load(settings)
    made = feed(pair.train, pair.val, settings, Order(len(pair.train), 4, seed=3), torch.device("cpu"), (16, 16))
    assert isinstance(made, FileFeed)
    return made


def test_a_memory_epoch_can_be_entered_in_the_middle() -> None:
    whole = list(_memory(seed=5).train(2))
    rest = list(_memory(seed=5).train(2, start=17))
    assert len(rest) == len(whole) - 17
    for (first,), (second,) in zip(whole[17:], rest, strict=True):
        assert torch.equal(first[0], second[0])
        assert torch.equal(first[1], second[1])


def test_two_processes_see_the_images_that_one_sees() -> None:
    alone = next(iter(_memory().train(0)))[0]
    shares = [next(iter(_memory(rank=rank, world=2).train(0)))[0] for rank in range(2)]
    for rank, (images, labels) in enumerate(shares):
        assert torch.equal(images, alone[0][rank::2])
        assert torch.equal(labels, alone[1][rank::2])


def test_accumulated_parts_make_up_the_step() -> None:
    whole = next(iter(_memory().train(0)))[0]
    parts = next(iter(_memory(accumulate=4).train(0)))
    assert torch.equal(torch.cat([images for images, _ in parts]), whole[0])


@pytest.mark.parametrize("world", [1, 2, 7])
def test_validation_images_of_all_processes_are_each_image_once(world: int) -> None:
    count = sum(len(labels) for rank in range(world) for _, labels in _memory(rank=rank, world=world, batch=14).val())
    assert count == 450


def test_a_file_epoch_is_the_same_with_workers_without_and_from_the_middle(pictures: Path) -> None:
    whole = list(_files(pictures).train(1))
    worked = list(_files(pictures, workers=2).train(1))
    rest = list(_files(pictures).train(1, start=2))
    for other, start in ((worked, 0), (rest, 2)):
        for (first,), (second,) in zip(whole[start:], other, strict=True):
            assert torch.equal(first[0], second[0])
            assert torch.equal(first[1], second[1])
    assert not torch.equal(whole[0][0][0], next(iter(_files(pictures).train(2)))[0][0])


@pytest.mark.parametrize("crop", ["none", "pad"])
def test_training_shows_images_in_the_shape_that_evaluation_shows(crop: str) -> None:
    settings = DataSettings(augment=Augment(crop=crop, padding=0, flip=1e-9))  # pyright: ignore[reportArgumentType]
    look = ((0.0,) * 3, (1.0,) * 3)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 70, 3), dtype=np.uint8))
    learned = training_transform(settings, (16, 16), *look)(picture)
    assert torch.equal(learned, evaluation_transform(settings, (16, 16), *look)(picture))


def test_reading_files_leaves_the_random_generators_alone(pictures: Path) -> None:
    before = torch.get_rng_state()
    list(_files(pictures).train(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_unreadable_files_give_their_place_to_others_and_are_told(pictures: Path) -> None:
    (pictures / "a" / "03.png").write_bytes(b"broken")
    made, told = _files(pictures), []
    made.skipped.tell = told.append
    assert all(len(images) == 4 for parts in made.train(0) for images, _ in parts)
    counted = sum(len(labels) for _, labels in made.val())
    assert len(told) == 1
    assert "03.png" in told[0]
    assert counted in (len(made.validation), len(made.validation) - 1)
    strict = _files(pictures, unreadable=0)
    with pytest.raises(GlocalError, match=r"03\.png"):
        list(itertools.chain(strict.train(0), strict.val()))


def test_evaluation_of_files_leaves_unreadable_ones_out(pictures: Path) -> None:
    made = _files(pictures)
    broken = made.validation.name(0)
    Path(broken).write_bytes(b"")
    assert sum(len(labels) for _, labels in made.val()) == len(made.validation) - 1


def test_an_image_of_too_many_pixels_is_told_like_a_broken_one(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (90, 90)).save(pictures / "a" / "03.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    made, told = _files(pictures), []
    made.skipped.tell = told.append
    list(itertools.chain(made.train(0), made.val()))
    assert len(told) == 1
    assert "03.png" in told[0]


def test_training_without_one_readable_validation_image_is_refused(pictures: Path) -> None:
    made = _files(pictures)
    for i in range(len(made.validation)):
        Path(made.validation.name(i)).write_bytes(b"none")
    task = Classify(recipe(), made, 2)
    with pytest.raises(GlocalError, match="none of the validation images can be read"):
        task.evaluate(torch.nn.Linear(2, 2), lambda each: each)


def test_pad_crop_on_files_keeps_the_size(pictures: Path) -> None:
    settings = replace(_files(pictures).settings, augment=PRESETS["deit_small"])
    pair = load(settings)
    made = feed(pair.train, pair.val, settings, Order(len(pair.train), 4), torch.device("cpu"), (16, 16))
    assert next(iter(made.train(0)))[0][0].shape == (4, 3, 16, 16)
