"""Read images from files: decode small sets once, and say which files cannot be read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from glocal.data.images import FileImages, Images, MemoryImages, few
from glocal.errors import GlocalError


def to_memory(images: Images, size: tuple[int, int], unreadable: int) -> tuple[MemoryImages, tuple[str, ...]]:
    """Bring every image to one size; up to `unreadable` broken files are skipped and named."""
    if isinstance(images, MemoryImages):
        return _resized(images, size), ()
    assert isinstance(images, FileImages)
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda index: _decode(images, index, size), range(len(images))))
    broken = [images.name(i) for i, each in enumerate(decoded) if each is None]
    notes = (refuse_many(broken, unreadable),) if broken else ()
    kept = torch.tensor([i for i, each in enumerate(decoded) if each is not None])
    pixels = torch.stack([each for each in decoded if each is not None])
    return MemoryImages(pixels, images.labels[kept], images.classes, images.mean, images.std), notes


def refuse_many(broken: list[str], limit: int) -> str:
    """Name unreadable files; raise when there are more than the limit."""
    text = f"{len(broken)} image{'s' * (len(broken) > 1)} cannot be read: {few(broken)}"
    if len(broken) > limit:
        raise GlocalError(f"{text}. At most {limit} may be skipped; mend them, or raise data.unreadable.")
    return f"{text}; skipped"


def sides(images: FileImages, most: int = 200) -> Tensor:
    """Look at some images and give their (height, width) as (n, 2)."""
    found: list[tuple[int, int]] = []
    for index in range(0, len(images), max(len(images) // most, 1)):
        try:
            image = images.open(index)
        except (OSError, SyntaxError, ValueError):
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
    from PIL import Image, ImageOps

    try:
        image = images.open(index)
        image.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    if (image.height, image.width) != size:
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
