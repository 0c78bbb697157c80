"""Read images from files: decode small sets once, and say which files cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glocal.data.images import UNREADABLE, FileImages, Images, MemoryImages, eight_bit, few
from glocal.data.settings import DataSettings
from glocal.errors import GlocalError


def share_seen(settings: DataSettings, size: tuple[int, int]) -> float:
    """Tell how much of an image's sides evaluation sees: as asked, else all of a small one, or timm's usual share."""
    return settings.crop_pct or (1.0 if max(size) <= 96 else 0.875)


def fitting(size: tuple[int, int], share: float = 1.0) -> list[Any]:
    """Bring images to a size, the shorter side first, then the middle: timm's steps for evaluation but the last two."""
    from timm.data.transforms_factory import create_transform

    made: Any = create_transform(size, interpolation="bicubic", crop_pct=share)
    return made.transforms[:-2]  # those make a tensor and normalise it


def to_memory(
    images: Images, size: tuple[int, int], unreadable: int, share: float = 1.0
) -> tuple[MemoryImages, tuple[str, ...]]:
    """Bring every image to one size; up to `unreadable` broken files are skipped and named."""
    (held,), notes = parts_to_memory([(images, share)], size, unreadable)
    return held, notes


def parts_to_memory(
    parts: Sequence[tuple[Images, float]], size: tuple[int, int], unreadable: int
) -> tuple[list[MemoryImages], tuple[str, ...]]:
    """Bring the images of all parts to one size, each part cut to its share; broken files are counted together."""
    read = [_part_to_memory(part, size, share) for part, share in parts]
    broken = [name for _, names in read for name in names]
    notes = (refuse_many(broken, unreadable),) if broken else ()
    for (part, _), (held, names) in zip(parts, read, strict=True):
        if len(part) and not len(held):
            raise GlocalError(f"none of {len(part)} images can be read: {few(names)}. Are they whole?")
    return [held for held, _ in read], notes


def _part_to_memory(images: Images, size: tuple[int, int], share: float) -> tuple[MemoryImages, list[str]]:
    steps = fitting(size, share)
    if isinstance(images, MemoryImages):
        kept = images.pixels.shape[-2:] == size and share == 1
        return images if kept else replace(images, pixels=_fitted(images.pixels, size, steps)), []
    assert isinstance(images, FileImages)
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda index: _decode(images, index, size, steps), range(len(images))))
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


def _fitted(pixels: Tensor, size: tuple[int, int], steps: Sequence[Any]) -> Tensor:
    made = pixels.new_empty(len(pixels), pixels.shape[1], *size)
    for start in range(0, len(pixels), 1000):
        some = pixels[start : start + 1000]
        for step in steps:
            some = step(some)
        made[start : start + 1000] = some
    return made


def _decode(images: FileImages, index: int, size: tuple[int, int], steps: Sequence[Any]) -> Tensor | None:
    try:
        image = images.open(index)
    except UNREADABLE:
        return None
    for step in steps:
        image = step(image)
    pixels = torch.from_numpy(np.array(image)).view(*size, -1)  # (H, W, C); grey has no C before
    return pixels.permute(2, 0, 1).contiguous()
