"""Where images come from, and what is said when they are not as they should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from glocal.data.images import FileImages, MemoryImages, holdout
from glocal.data.settings import DataSettings
from glocal.data.sources import digits, in_memory, load, npz
from glocal.errors import GlocalError


def _picture(path: Path, shade: int, side: int = 12) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, shade in (("cat", 40), ("dog", 200)):
        for i in range(10):
            _picture(tmp_path / "set" / name / f"{i}.png", shade + i)
    return tmp_path / "set"


def test_digits_hold_out_their_last_quarter_with_all_classes_and_share_no_image() -> None:
    pair = digits()
    assert (len(pair.train), len(pair.val)) == (1347, 450)
    assert torch.equal(torch.cat([pair.train.labels, pair.val.labels]), torch.from_numpy(load_digits().target))
    assert torch.bincount(pair.val.labels).min() >= 41
    seen = {image.numpy().tobytes() for image in pair.train.pixels}
    assert sum(image.numpy().tobytes() in seen for image in pair.val.pixels) == 0


def test_holdout_takes_the_same_share_of_every_class() -> None:
    labels = torch.tensor([0] * 40 + [1] * 20 + [2] * 2)
    train, val = holdout(labels, 0.25, seed=1)
    assert torch.bincount(labels[val]).tolist() == [10, 5, 1]
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(62))


def test_a_folder_without_validation_part_is_split_and_says_so(folder: Path) -> None:
    pair = load(DataSettings(name=str(folder)))
    assert pair.train.classes == ("cat", "dog")
    assert (len(pair.train), len(pair.val)) == (16, 4)
    assert "4 of 20 images are held out" in pair.notes[0]


def test_a_folder_with_train_and_val_uses_them(folder: Path) -> None:
    for name, shade in (("cat", 40), ("dog", 200)):
        _picture(folder.parent / "whole" / "val" / name / "x.png", shade)
    (folder.parent / "whole" / "train").symlink_to(folder)
    pair = load(DataSettings(name=str(folder.parent / "whole")))
    assert (len(pair.train), len(pair.val)) == (20, 2)


def test_classes_that_differ_between_train_and_val_are_named(folder: Path) -> None:
    _picture(folder.parent / "whole" / "val" / "cat" / "x.png", 3)
    _picture(folder.parent / "whole" / "val" / "cow" / "x.png", 3)
    (folder.parent / "whole" / "train").symlink_to(folder)
    with pytest.raises(GlocalError, match="only one of them has cow, dog"):
        load(DataSettings(name=str(folder.parent / "whole")))


def test_an_empty_class_folder_is_noted(folder: Path) -> None:
    (folder / "unicorn").mkdir()
    pair = load(DataSettings(name=str(folder)))
    assert "unicorn" in pair.notes[0]
    assert pair.train.classes == ("cat", "dog")


def test_unreadable_images_are_named_counted_and_skipped_up_to_a_limit(folder: Path) -> None:
    (folder / "cat" / "3.png").write_bytes(b"no picture")
    settings = DataSettings(name=str(folder), unreadable=1)
    pair = in_memory(load(settings), settings, (12, 12))
    assert len(pair.train) + len(pair.val) == 19
    assert any("1 image cannot be read" in note and "3.png" in note for note in pair.notes)
    (folder / "cat" / "4.png").write_bytes((folder / "cat" / "5.png").read_bytes()[:40])
    (folder / "dog" / "4.png").write_bytes(b"")
    (folder / "dog" / "5.png").write_bytes(b"")
    with pytest.raises(GlocalError, match=r"At most 1 may be skipped"):
        in_memory(load(settings), settings, (12, 12))


def test_decoded_images_keep_their_pixels(folder: Path) -> None:
    settings = DataSettings(name=str(folder))
    pair = load(settings)
    assert isinstance(pair.train, FileImages)
    held = in_memory(pair, settings, (12, 12)).train
    assert isinstance(held, MemoryImages)
    assert held.pixels.shape[1:] == (3, 12, 12)
    cats = held.pixels[held.labels == 0].float().mean(dim=(1, 2, 3))
    assert cats.min() >= 40
    assert cats.max() <= 49


def test_large_images_stay_in_their_files(folder: Path) -> None:
    settings = DataSettings(name=str(folder))
    assert isinstance(in_memory(load(settings), settings, (224, 224)).train, FileImages)


def test_npz_files_are_read_and_their_faults_told(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(20) % 4
    np.savez(tmp_path / "train.npz", images=images, labels=labels, classes=np.array(list("abcd")))
    read = npz(tmp_path / "train.npz")
    assert read.classes == tuple("abcd")
    assert torch.equal(read.pixels[3].permute(1, 2, 0), torch.from_numpy(images[3]))
    faults = {
        "needs `images` and `labels`": {"images": images},
        "20 images but 5 labels": {"images": images, "labels": labels[:5]},
        "wanted uint8": {"images": images.astype(np.float32), "labels": labels},
        "there are 2 classes": {"images": images, "labels": labels, "classes": np.array(["a", "b"])},
    }
    for text, arrays in faults.items():
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(GlocalError, match=text):
            npz(tmp_path / "bad.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK not a zip")
    with pytest.raises(GlocalError, match="cannot be read"):
        npz(tmp_path / "bad.npz")


def test_an_npz_pair_uses_the_test_file_for_validation(tmp_path: Path) -> None:
    images, labels = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "train.npz", images=images, labels=labels)
    np.savez(tmp_path / "test.npz", images=images[:6], labels=labels[:6])
    for name in (tmp_path, tmp_path / "train.npz"):
        pair = load(DataSettings(name=str(name)))
        assert (len(pair.train), len(pair.val)) == (20, 6)


@pytest.mark.parametrize(
    ("name", "text"),
    [("digit", "Did you mean 'digits'"), ("/no/such/folder", "neither a folder"), ("x.npz", "not exist")],
)
def test_a_set_that_is_not_there_is_refused_with_advice(name: str, text: str) -> None:
    with pytest.raises(GlocalError, match=text):
        load(DataSettings(name=name))


def test_a_folder_without_classes_or_with_one_is_refused(tmp_path: Path) -> None:
    _picture(tmp_path / "flat" / "x.png", 1)
    with pytest.raises(GlocalError, match="folder of its own"):
        load(DataSettings(name=str(tmp_path / "flat")))
    for i in range(3):
        _picture(tmp_path / "one" / "cat" / f"{i}.png", 1)
    with pytest.raises(GlocalError, match="nothing to tell apart"):
        load(DataSettings(name=str(tmp_path / "one")))
