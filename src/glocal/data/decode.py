"""Read images from files: decode small sets once, and say which files cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from glocal.data.images import UNREADABLE, FileImages, Images, MemoryImages, eight_bit, few
from glocal.errors import GlocalError


def to_memory(images: Images, size: tuple[int, int], unreadable: int) -> tuple[MemoryImages, tuple[str, ...]]:
    """Bring every image to one size; up to `unreadable` broken files are skipped and named."""
    (held,), notes = parts_to_memory([images], size, unreadable)
    return held, notes


def parts_to_memory(
    parts: Sequence[Images], size: tuple[int, int], unreadable: int
) -> tuple[list[MemoryImages], tuple[str, ...]]:
    """Bring the images of all parts to one size; the parts' broken files are counted together."""
    read = [_part_to_memory(part, size) for part in parts]
    broken = [name for _, names in read for name in names]
    notes = (refuse_many(broken, unreadable),) if broken else ()
    for part, (held, names) in zip(parts, read, strict=True):
        if len(part) and not len(held):
            raise GlocalError(f"none of {len(part)} images can be read: {few(names)}. Are they whole?")
    return [held for held, _ in read], notes


def _part_to_memory(images: Images, size: tuple[int, int]) -> tuple[MemoryImages, list[str]]:
    if isinstance(images, MemoryImages):
        return _resized(images, size), []
    assert isinstance(images, FileImages)
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda index: _decode(images, index, size), range(len(images))))
    broken = [images.name(i) for i, each in enumerate(decoded) if each is None]
    kept = torch.tensor([i for i, each in enumerate(decoded) if each is not None], dtype=torch.int64)
    whole = [each for each in decoded if each is not None]
    pixels = torch.stack(whole) if whole else torch.empty(0, len(images.mean), *size, dtype=torch.uint8)
    return MemoryImages(pixels, images.labels[kept], images.classes, images.mean, images.std), broken


def refuse_many(broken: list[str], limit: int) -> str:
    """Name unreadable files; raise when there are more than the limit."""
    text = f"{len(broken)} image{'s' * (len(broken) > 1)} cannot be read: {few(broken)}"
    if len(broken) > limit:
        raise GlocalError(f"{text}. At most {limit} may be skipped; mend them, or raise data.unreadable.")
    return f"{text}; skipped"


def read_pixels(file: Path) -> Tensor:
    """Read an image as (3, H, W) bytes, as it is stored: boxes and label maps are drawn on that."""
    with Image.open(file) as opened:
        return torch.from_numpy(np.array(eight_bit(opened, "RGB"))).permute(2, 0, 1).contiguous()


def sides(images: FileImages, most: int = 200) -> Tensor:
    """Look at some images and give their (height, width) as (n, 2)."""
    found: list[tuple[int, int]] = []
    for index in range(0, len(images), max(len(images) // most, 1)):
        try:
            image = images.open(index)
        except UNREADABLE:
            continue
        found.append((image.height, image.width))
    if not found:
        raise GlocalError("none of the images looked at can be read. Are they whole?")
    return torch.tensor(found)


def _resized(images: MemoryImages, size: tuple[int, int]) -> MemoryImages:
    if images.pixels.shape[-2:] == size:
        return images
    from torchvision.transforms.v2.functional import resize

    return replace(images, pixels=resize(images.pixels, list(size), antialias=True))


def _decode(images: FileImages, index: int, size: tuple[int, int]) -> Tensor | None:
    try:
        image = images.open(index)
    except UNREADABLE:
        return None
    if (image.height, image.width) != size:
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image)).view(*size, -1)  # (H, W, C); grey has no C before
    return pixels.permute(2, 0, 1).contiguous()
