"""Images that strangers give: read, or refused in words."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from glocal.errors import GlocalError
from glocal.explain.picture import crop, crop_box, read_labels, read_picture


def test_any_kind_of_picture_becomes_rgb(tmp_path: Path) -> None:
    for mode in ("L", "LA", "RGBA", "P", "CMYK", "I;16", "1"):
        path = tmp_path / f"{mode.replace(';', '')}.{'tif' if mode in ('CMYK', 'I;16') else 'png'}"
        Image.new(mode, (20, 10)).save(path)
        picture = read_picture(path)
        assert picture.mode == "RGB"
        assert picture.size == (20, 10)


def test_a_photo_taken_sideways_is_turned_upright(tmp_path: Path) -> None:
    picture = Image.new("RGB", (20, 10))
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "turned.jpg", exif=exif)
    assert read_picture(tmp_path / "turned.jpg").size == (10, 20)


def huge_png(path: Path, width: int, height: int) -> Path:
    """Write a PNG whose header promises more pixels than it holds."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    )
    return path


def broken(folder: Path) -> dict[str, tuple[Path, str]]:
    """Make one file of every bad kind, with the words that should come back."""
    text, empty, cut, dot = folder / "text.jpg", folder / "empty.png", folder / "cut.jpg", folder / "dot.png"
    text.write_text("not an image")
    empty.write_bytes(b"")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:900])
    Image.new("RGB", (1, 1)).save(dot)
    return {
        "missing": (folder / "nowhere.png", "is not there"),
        "folder": (folder, "is a folder"),
        "text": (text, "not an image"),
        "empty": (empty, "not an image"),
        "cut": (cut, "broken"),
        "1x1": (dot, "at least 8"),
        "20000x20000": (huge_png(folder / "huge.png", 20_000, 20_000), "million"),
        "12000x12000": (huge_png(folder / "large.png", 12_000, 12_000), "12000x12000"),
    }


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "empty", "cut", "1x1", "20000x20000", "12000x12000"])
def test_bad_images_are_refused_in_words(kind: str, tmp_path: Path) -> None:
    path, words = broken(tmp_path)[kind]
    with pytest.raises(GlocalError, match=words):
        read_picture(path)


def test_a_file_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    monkeypatch.setattr("glocal.explain.picture.MAX_BYTES", 10)
    with pytest.raises(GlocalError, match="MiB"):
        read_picture(tmp_path / "a.png")


def test_cropping_keeps_the_middle_and_boxes_follow_it() -> None:
    picture = Image.new("RGB", (40, 20))
    picture.paste((255, 0, 0), (18, 8, 22, 12))
    view = crop(picture, (10, 10))  # scaled by a half, ten columns cut left and right
    assert view.size == (10, 10)
    assert crop_box((18, 8, 22, 12), (40, 20), (10, 10)) == (4, 4, 6, 6)
    assert view.getpixel((4, 4))[0] > 200  # type: ignore[index]


def test_labels_are_cut_but_never_blended(tmp_path: Path) -> None:
    labels = np.zeros((20, 40), np.uint8)
    labels[:, 20:] = 7
    Image.fromarray(labels).save(tmp_path / "labels.png")
    read = read_labels(tmp_path / "labels.png", (10, 10))
    assert sorted(read.unique().tolist()) == [0, 7]
    assert read[:, :5].max() == 0
    assert read[:, 5:].min() == 7


def test_a_colour_picture_is_no_label_map(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "labels.png")
    with pytest.raises(GlocalError, match="one number a pixel"):
        read_labels(tmp_path / "labels.png", (10, 10))
