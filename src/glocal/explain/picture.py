"""Reads an image that a stranger gave: with limits, and with words for whatever is wrong with it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from glocal.data.images import UNREADABLE, eight_bit, upright
from glocal.errors import GlocalError

MAX_BYTES = 64 * 2**20
MAX_PIXELS = 100_000_000
MIN_SIDE = 8


def read_picture(path: str | Path) -> Image.Image:
    """Open an image file as RGB, upright; its header is checked before a pixel is decoded."""
    path = Path(path)
    if path.is_dir():
        raise GlocalError(f"{path} is a folder. Name the images in it, such as {path}/*.jpg.")
    if not path.is_file():
        raise GlocalError(f"{path} is not there. Give the path of an image file.")
    if path.stat().st_size > MAX_BYTES:
        raise GlocalError(
            f"{path.name} has {path.stat().st_size / 2**20:.0f} MiB; images up to {MAX_BYTES // 2**20} MiB are read."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
            image = Image.open(path)
        check_size(image.size, path.name)
        return eight_bit(upright(image), "RGB")
    except Image.DecompressionBombError:
        raise GlocalError(
            f"{path.name} has more than {MAX_PIXELS / 1e6:.0f} million pixels. Make it smaller first."
        ) from None
    except UnidentifiedImageError:
        raise GlocalError(
            f"{path.name} is not an image that can be read. JPEG, PNG, WebP, GIF, BMP and TIFF are."
        ) from None
    except UNREADABLE as error:
        raise GlocalError(
            f"{path.name} is broken and cannot be decoded ({error}). Save it anew, or take another."
        ) from None


def check_size(size: tuple[int, int], name: str) -> None:
    """Raise for images that are too small to show anything, or so large that they would fill the memory."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise GlocalError(
            f"{name} has {width}x{height} pixels; up to {MAX_PIXELS / 1e6:.0f} million are read. Make it smaller first."
        )
    if min(width, height) < MIN_SIDE:
        raise GlocalError(
            f"{name} has {width}x{height} pixels; at least {MIN_SIDE} on each side are needed to see anything."
        )


def crop(picture: Image.Image, size: tuple[int, int], *, labels: bool = False) -> Image.Image:
    """Bring a picture to (height, width): the shorter side first, then the middle; labels are never blended."""
    how = Image.Resampling.NEAREST if labels else Image.Resampling.BICUBIC
    return ImageOps.fit(picture, (size[1], size[0]), method=how)


def crop_box(
    box: tuple[float, float, float, float], given: tuple[int, int], size: tuple[int, int]
) -> tuple[float, float, float, float]:
    """Follow a box of a picture of `given` (width, height) pixels through `crop`."""
    factor = max(size[1] / given[0], size[0] / given[1])
    left, top, right, bottom = box
    across, down = (size[1] - given[0] * factor) / 2, (size[0] - given[1] * factor) / 2
    return left * factor + across, top * factor + down, right * factor + across, bottom * factor + down


def read_labels(path: Path, size: tuple[int, int]) -> Tensor:
    """Read a label map, one number a pixel, cut as `crop` cuts the image: (height, width)."""
    read_picture(path)  # the same limits, and the same words
    with Image.open(path) as file:
        if file.mode not in ("L", "P", "I", "I;16", "1"):
            raise GlocalError(
                f"{path.name} is a {file.mode} picture; a label map has one number a pixel (a grey or palette PNG)."
            )
        return torch.from_numpy(np.array(crop(file, size, labels=True)).astype(np.int64))
