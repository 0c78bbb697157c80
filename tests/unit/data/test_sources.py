"""Where images come from, and what is said when they are not as they should be."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from sklearn.datasets import load_digits

from glocal.data.decode import share_seen, sides, to_memory
from glocal.data.feed import evaluation_transform
from glocal.data.images import FileImages, MemoryImages, eight_bit, holdout, with_channels
from glocal.data.settings import DataSettings
from glocal.data.sources import digits, in_memory, load, npz
from glocal.errors import GlocalError
from glocal.explain.picture import read_picture


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


def test_unreadable_images_of_both_parts_count_together(folder: Path) -> None:
    settings = DataSettings(name=str(folder), unreadable=1)
    pair = load(settings)
    assert isinstance(pair.train, FileImages)
    assert isinstance(pair.val, FileImages)
    for part in (pair.train, pair.val):
        Path(part.name(0)).write_bytes(b"none")
    with pytest.raises(GlocalError, match="2 images cannot be read"):
        in_memory(pair, settings, (12, 12))


def test_a_part_without_one_readable_image_is_refused(folder: Path) -> None:
    settings = DataSettings(name=str(folder))
    pair = load(settings)
    assert isinstance(pair.val, FileImages)
    for i in range(len(pair.val)):
        Path(pair.val.name(i)).write_bytes(b"none")
    with pytest.raises(GlocalError, match="none of 4 images can be read"):
        in_memory(pair, settings, (12, 12))


def test_an_image_of_too_many_pixels_is_unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _picture(folder / "cat" / "3.png", 3, side=40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    settings = DataSettings(name=str(folder))
    pair = load(settings)
    assert isinstance(pair.train, FileImages)
    assert "3.png" in in_memory(pair, settings, (12, 12)).notes[-1]
    assert sides(pair.train).max() == 12


def test_top_level_folders_are_the_classes_whatever_lies_within(tmp_path: Path) -> None:
    for i, place in enumerate(("a/s1", "a/s2", "b/s1", "b/s3/deep", "c", "c/.cache")):
        for j in range(5):
            _picture(tmp_path / place / f"{j}.png", 40 * i + j)
    pair = load(DataSettings(name=str(tmp_path)))
    assert pair.train.classes == ("a", "b", "c")
    assert len(pair.train) + len(pair.val) == 25
    assert "add to the class: a/s1, a/s2, b/s1, b/s3/deep" in pair.notes[0]
    with pytest.raises(GlocalError, match=r"folder only, b, which holds .* give .*/b"):
        load(DataSettings(name=str(_alone(tmp_path, "b"))))


def _alone(root: Path, name: str) -> Path:
    (root / ".alone").mkdir()
    (root / name).rename(root / ".alone" / name)
    return root / ".alone"


def test_every_kind_of_image_is_taken_and_other_files_are_named(folder: Path) -> None:
    for end in ("webp", "BMP", "gif", "tif", "TIFF", "jpeg", "JPG"):
        _picture(folder / "cat" / f"x.{end}", 40)
    (folder / "dog" / "readme.txt").write_text("dogs")
    (folder / "cat" / ".DS_Store").write_text("hidden")
    _picture(folder / "stray.png", 1)
    settings = DataSettings(name=str(folder))
    pair = in_memory(load(settings), settings, (12, 12))
    assert len(pair.train) + len(pair.val) == 27
    assert pair.notes[0].startswith("2 files ignored")
    assert "readme.txt" in pair.notes[0]
    assert "stray.png" in pair.notes[0]


def test_folders_with_no_image_tell_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.doc").write_text("x")
    with pytest.raises(GlocalError, match=r"no image in its 1 folders. 1 file ignored, .*x\.doc"):
        load(DataSettings(name=str(tmp_path)))


def test_an_archive_of_class_folders_is_read(folder: Path) -> None:
    with tarfile.open(folder.parent / "set.tar", "w") as archive:
        archive.add(folder, arcname=".")
    settings = DataSettings(name=str(folder.parent / "set.tar"))
    pair, files = (
        in_memory(load(each), each, (12, 12)) for each in (settings, DataSettings(name=str(folder), unreadable=0))
    )
    assert pair.train.classes == ("cat", "dog")
    assert isinstance(pair.train, MemoryImages)
    assert isinstance(files.train, MemoryImages)
    assert torch.equal(pair.train.pixels, files.train.pixels)


def _packed(path: Path, folder: Path, within: str) -> Path:
    with tarfile.open(path, "w") as opened:
        opened.add(folder, arcname=within)
    return path


def _classes_of(place: Path) -> tuple[tuple[str, ...], int, tuple[str, ...]]:
    pair = load(DataSettings(name=str(place)))
    return pair.train.classes, len(pair.train) + len(pair.val), pair.notes


def test_an_archive_is_read_as_the_folder_in_it(folder: Path) -> None:
    for name in ("cat/x.webp", "cat/y.BMP", "dog/monday/z.tiff", "cat/monday/z.gif", "stray.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        _picture(folder / name, 40)
    (folder / "cat" / "._x.png").write_bytes(b"a Mac's")
    for within in (".", "set", "deep/set"):
        classes, count, notes = _classes_of(_packed(folder.parent / "set.tar", folder, within))
        assert (classes, count) == (("cat", "dog"), 24)
        assert notes[0].startswith("1 file ignored")
        assert "stray.png" in notes[0]
    with tarfile.open(folder.parent / "classes.tar", "w") as opened:
        for name in ("cat", "dog"):
            opened.add(_packed(folder.parent / f"{name}.tar", folder / name, "."), arcname=f"{name}.tar")
    pair = load(DataSettings(name=str(folder.parent / "classes.tar")))
    assert (pair.train.classes, len(pair.train) + len(pair.val)) == (("cat", "dog"), 24)
    assert isinstance(pair.train, FileImages)
    assert pair.train.open(0).size == (12, 12)


def test_parts_within_an_archive_are_taken_as_one_set_with_a_word(folder: Path) -> None:
    with tarfile.open(folder.parent / "set.tar", "w") as opened:
        opened.add(folder, arcname="train")
        opened.add(folder, arcname="val")
    classes, count, notes = _classes_of(folder.parent / "set.tar")
    assert (classes, count) == (("cat", "dog"), 40)
    assert "train, val of the archive are taken as one set" in notes[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [("gone.tar", "No such file"), ("empty.tar", "empty file"), ("none.tar", "has no image in a class")],
)
def test_an_archive_without_images_is_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "empty.tar").touch()
    tarfile.open(tmp_path / "none.tar", "w").close()
    with pytest.raises(GlocalError, match=told):
        load(DataSettings(name=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (np.array([[0, 257, 32896, 65535]], np.uint16), [0, 1, 128, 255]),
        (np.array([[0, 257, 32896, 65535]], np.int32), [0, 1, 128, 255]),
        (np.array([[0, 1, 128, 255]], np.int32), [0, 1, 128, 255]),
        (np.array([[-1000, 0, 1000]], np.int32), [0, 128, 255]),
        (np.array([[0, 0.5, 1, np.nan]], np.float32), [0, 128, 255, 0]),
        (np.array([[0, 1, 128, 255]], np.float32), [0, 1, 128, 255]),
        (np.array([[0, 5e5, 1e6]], np.float32), [0, 128, 255]),
        (np.array([[7e5, 7e5]], np.float32), [0, 0]),
    ],
    ids=str,
)
def test_deep_greys_are_scaled_to_bytes(values: np.ndarray, wanted: list[int]) -> None:
    image = Image.fromarray(values)
    assert np.asarray(eight_bit(image, "L")).ravel().tolist() == wanted
    assert np.asarray(eight_bit(image, "RGB"))[..., 2].ravel().tolist() == wanted


def test_a_sixteen_bit_file_is_read_as_its_eight_bits_are(folder: Path) -> None:
    shades = np.arange(144).reshape(12, 12)
    Image.fromarray((shades * 257).astype(np.uint16)).save(folder / "cat" / "0.png")
    pair = load(DataSettings(name=str(folder)))
    for part in (pair.train, pair.val):
        assert isinstance(part, FileImages)
        for i in range(len(part)):
            if part.name(i).endswith("cat/0.png"):
                assert np.array_equal(np.asarray(part.open(i))[..., 0], shades)
                return
    pytest.fail("the image is in neither part")


def test_colours_turn_grey_as_pillow_turns_them(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 3), dtype=np.uint8)
    images = MemoryImages(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.zeros(3), ("a",))
    grey = np.stack([np.asarray(Image.fromarray(each).convert("L")) for each in pixels])
    assert np.array_equal(with_channels(images, 1).pixels[:, 0].numpy(), grey)
    assert with_channels(with_channels(images, 1), 3).pixels.shape == (3, 3, 9, 9)


def test_classes_without_images_are_named(folder: Path, tmp_path: Path) -> None:
    _picture(folder / "emu" / "only.png", 9)
    assert "no validation image of class emu" in load(DataSettings(name=str(folder))).notes[-1]
    labels = np.repeat([0, 1, 5, 9], 5)
    np.savez(tmp_path / "gaps.npz", images=np.zeros((20, 8, 8, 3), np.uint8), labels=labels)
    notes = load(DataSettings(name=str(tmp_path / "gaps.npz"))).notes
    assert len(notes) == 2
    assert "no image at all of class 2, 3, 4, 6, 7 and 1 more" in notes[-1]


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


@pytest.mark.parametrize("crop", [None, 0.8])
@pytest.mark.parametrize("size", [(12, 12), (12, 20)])
def test_images_in_memory_are_cut_as_those_that_are_read_one_by_one(
    tmp_path: Path, size: tuple[int, int], crop: float | None
) -> None:
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (6, 31, 50, 3), dtype=np.uint8)
    for i, each in enumerate(pixels):
        (tmp_path / "set" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(each).save(tmp_path / "set" / "ab"[i % 2] / f"{i}.png")
    settings = DataSettings(name=str(tmp_path / "set"), crop_pct=crop)
    files = load(settings)
    held = in_memory(files, settings, size)
    transform = evaluation_transform(settings, size, (0.0,) * 3, (1.0,) * 3)
    assert isinstance(files.val, FileImages)
    assert isinstance(held.val, MemoryImages)
    wanted = torch.stack([transform(files.val.open(i)) for i in range(len(files.val))])
    assert torch.equal((wanted * 255).round().byte(), held.val.pixels)
    stored = MemoryImages(torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.zeros(6, dtype=torch.int64), ("a", "b"))
    near, _ = to_memory(stored, size, 0, share_seen(settings, size))
    chosen = [int(Path(files.val.name(i)).stem) for i in range(len(files.val))]
    assert (near.pixels[chosen].int() - held.val.pixels.int()).abs().max() <= 6  # resampled by torch, not by Pillow


@pytest.mark.parametrize("notes", [b"", b"garbled"])
def test_photos_stand_upright_wherever_they_are_read(tmp_path: Path, notes: bytes) -> None:
    picture = Image.new("RGB", (16, 8), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 0, 8, 8))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2):
            picture.save(tmp_path / name / f"{i}.png", exif=b"Exif\0\0" + notes if notes else exif.tobytes())
    pair = load(DataSettings(name=str(tmp_path)))
    assert isinstance(pair.val, FileImages)
    read = pair.val.open(0)
    assert read.size == ((16, 8) if notes else (8, 16))
    assert read_picture(tmp_path / "a" / "0.png").tobytes() == read.tobytes()


def _part(path: Path, labels: list[int], classes: str = "") -> None:
    named = {"classes": np.array(list(classes))} if classes else {}
    np.savez(path, images=np.zeros((len(labels), 8, 8, 3), np.uint8), labels=np.array(labels), **named)


@pytest.mark.parametrize(
    ("train", "val", "classes"),
    [
        (([0, 1, 2], "abc"), ([0, 1, 2], ""), "abc"),
        (([0, 1, 2], ""), ([0, 1], "abc"), "abc"),
        (([0, 1, 2], ""), ([0, 1], ""), "012"),
    ],
)
def test_the_names_in_one_npz_are_those_of_the_other_too(
    tmp_path: Path, train: tuple[list[int], str], val: tuple[list[int], str], classes: str
) -> None:
    _part(tmp_path / "train.npz", *train)
    _part(tmp_path / "val.npz", *val)
    pair = load(DataSettings(name=str(tmp_path)))
    assert pair.train.classes == pair.val.classes == tuple(classes)


def test_npz_parts_of_other_classes_are_refused_by_name(tmp_path: Path) -> None:
    _part(tmp_path / "train.npz", [0, 1, 2], "abc")
    _part(tmp_path / "val.npz", [0, 1, 2], "abx")
    with pytest.raises(GlocalError, match="they differ in c, x"):
        load(DataSettings(name=str(tmp_path)))
    _part(tmp_path / "val.npz", [0, 1, 2], "bac")
    with pytest.raises(GlocalError, match="the same in another order"):
        load(DataSettings(name=str(tmp_path)))
    _part(tmp_path / "val.npz", [0, 3])
    with pytest.raises(GlocalError, match=r"has 3 classes and val\.npz has 4"):
        load(DataSettings(name=str(tmp_path)))


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
        "one name for each label": {"images": images, "labels": labels, "classes": np.array("abcd")},
        "holds no images": {"images": images[:0], "labels": labels[:0]},
        "labels are text; wanted 20 whole numbers": {"images": images, "labels": labels.astype(str)},
        "such as nan": {"images": images, "labels": np.where(labels == 1, np.nan, labels)},
        "such as 1.5": {"images": images, "labels": np.where(labels == 1, 1.5, labels)},
        "such as -1": {"images": images, "labels": labels - 1},
        r"of shape \(\);": {"images": images, "labels": np.array(3)},
        r"labels.reshape\(-1\)": {"images": images, "labels": labels[:, None]},
        r"labels.argmax\(axis=1\)": {"images": images, "labels": np.eye(4)[labels]},
        "20 images with labels up to 1000000000. Number the 4 classes": {
            "images": images,
            "labels": np.where(labels == 3, 10**9, labels),
        },
    }
    for text, arrays in faults.items():
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(GlocalError, match=rf"bad\.npz.*{text}"):
            npz(tmp_path / "bad.npz")
    for kind, count in ((np.float32, 4), (np.uint8, 4), (bool, 2)):
        np.savez(tmp_path / "bad.npz", images=images, labels=labels.astype(kind))
        assert npz(tmp_path / "bad.npz").classes == ("0", "1", "2", "3")[:count]
    (tmp_path / "bad.npz").write_bytes(b"PK not a zip")
    with pytest.raises(GlocalError, match="cannot be read"):
        npz(tmp_path / "bad.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_files_are_told(tmp_path: Path, save) -> None:
    file = tmp_path / "bad.npz"
    save(file, images=np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), labels=np.arange(20))
    whole = file.read_bytes()
    middle = len(whole) // 2
    spoilt = whole[:middle] + bytes(each ^ 255 for each in whole[middle : middle + 9]) + whole[middle + 9 :]
    np.save(tmp_path / "array.npy", np.zeros(3))
    for content in (whole[:middle], spoilt, b"PK\3\4 junk", b"", b"junk", (tmp_path / "array.npy").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(GlocalError, match=r"bad\.npz cannot be read as \.npz"):
            npz(file)


def test_parts_of_an_npz_pair_take_the_channels_of_the_training_part(tmp_path: Path) -> None:
    images, labels = np.zeros((20, 8, 8, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "train.npz", images=images[..., 0], labels=labels)
    np.savez(tmp_path / "test.npz", images=images, labels=labels)
    pair = load(DataSettings(name=str(tmp_path)))
    assert isinstance(pair.val, MemoryImages)
    assert pair.val.pixels.shape == (20, 1, 8, 8)


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
