"""Labelled images: held in memory as bytes, or read from files one by one."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# What Pillow raises for files that are no whole image; a bomb is one of more than 179 million pixels.
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)
_ONLY_NAMED = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}  # Pillow knows them, but cannot draw them by itself


@dataclass(frozen=True)
class MemoryImages:
    """Images as one (N, C, H, W) uint8 tensor."""

    pixels: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, chosen: Tensor) -> MemoryImages:
        """Keep some of the images, in the order given."""
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen])

    def to(self, device: torch.device | str) -> MemoryImages:
        """Move the images to a device."""
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class FolderFiles:
    """Image files and the number of each one's class."""

    files: list[str]
    labels: list[int]

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.files[index]), self.labels[index]

    def filename(self, index: int, absolute: bool = False) -> str:
        """Name a file, as timm's datasets do."""
        return self.files[index]


@dataclass(frozen=True)
class FileImages:
    """Images behind a dataset of files or of timm, and which of its entries belong to the set.

    Where mean and std have one value only, images are read in grey.
    """

    dataset: Any
    labels: Tensor
    classes: tuple[str, ...]
    chosen: Tensor
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def __len__(self) -> int:
        return len(self.chosen)

    def take(self, chosen: Tensor) -> FileImages:
        """Keep some of the images, in the order given."""
        return replace(self, labels=self.labels[chosen], chosen=self.chosen[chosen])

    def name(self, index: int) -> str:
        """Tell the file of an image, or its number where the store has no names."""
        entry = int(self.chosen[index])
        try:
            return str(self.dataset.filename(entry, absolute=True))
        except (AttributeError, NotImplementedError):
            return f"image {entry}"

    def open(self, index: int) -> Any:
        """Read an image as RGB or grey; raises one of `UNREADABLE` where that cannot be done."""
        # timm's own retry would silently put another image in the place of a broken one, so its reader is asked.
        stream = getattr(self.dataset, "reader", self.dataset)[int(self.chosen[index])][0]
        image = stream if isinstance(stream, Image.Image) else Image.open(stream)
        return eight_bit(upright(image), "L" if len(self.mean) == 1 else "RGB")


@dataclass(frozen=True)
class StreamImages:
    """Images that come one after the other and cannot be chosen; their labels are not known beforehand."""

    dataset: Any
    count: int
    classes: tuple[str, ...]
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def __len__(self) -> int:
        return self.count


Images = MemoryImages | FileImages | StreamImages


@dataclass(frozen=True)
class Pair:
    """The two parts of a data set."""

    train: Images
    val: Images
    notes: tuple[str, ...] = ()


@cache
def image_suffixes() -> frozenset[str]:
    """Give the endings, in small letters, of files that Pillow can read."""
    known = Image.registered_extensions()
    return frozenset(end for end, kind in known.items() if kind in Image.OPEN and kind not in _ONLY_NAMED)


def upright(image: Image.Image) -> Image.Image:
    """Turn a photo as its camera held it; one whose notes on that cannot be read stays as it is stored."""
    image.load()  # what is wrong with the pixels is told here, and not taken for a fault of the notes
    with suppress(Exception):  # there are many ways to garble them
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return ImageOps.exif_transpose(image)
    return image


def eight_bit(image: Image.Image, mode: str) -> Image.Image:
    """Bring an image to RGB or L; Pillow alone would cut deeper greys off at 255, which makes them white."""
    if image.mode.startswith("I;16"):
        # By the type's range and not the image's own: how bright images are beside each other says something.
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        image = Image.fromarray(_to_bytes(np.asarray(image, np.float32), whole=image.mode == "I"))
    return image.convert(mode)


def _to_bytes(values: np.ndarray[Any, Any], whole: bool) -> np.ndarray[Any, Any]:
    values = np.where(np.isfinite(values), values, 0).astype(np.float64)
    low, high = values.min(), values.max()
    if low < 0 or high > (2**16 - 1 if whole else 255):
        values = (values - low) * (255 / max(high - low, 1e-12))  # no range is agreed on: the image's own
    elif high > 255:
        values = values / 257  # sixteen bits in thirty-two, as TIFF and older Pillow hold them
    elif high <= 1 and not whole:
        values = values * 255  # fractions, the custom for floating point
    return values.round().astype(np.uint8)


def with_channels(images: MemoryImages, channels: int) -> MemoryImages:
    """Bring images to grey (1) or RGB (3), with Pillow's weights."""
    if images.pixels.shape[1] == channels:
        return images
    if channels == 3:
        return replace(images, pixels=images.pixels.repeat(1, 3, 1, 1))
    weights = torch.tensor([19595, 38470, 7471])[:, None, None]  # sum to 2**16
    # One by one: as whole numbers that can be summed, all images together would take eight times their room.
    grey = [((each * weights).sum(0, keepdim=True) + 2**15 >> 16).to(torch.uint8) for each in images.pixels]
    return replace(images, pixels=torch.stack(grey))


def holdout(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Part indices into training and validation, each class in the same proportion, at least one image on each side."""
    generator = torch.Generator().manual_seed(seed)
    train: list[Tensor] = []
    val: list[Tensor] = []
    for label in labels.unique().tolist():
        members = torch.nonzero(labels == label).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        val.append(members[:count])
        train.append(members[count:])
    return torch.cat(train).sort().values, torch.cat(val).sort().values


def few(names: Sequence[str], most: int = 5) -> str:
    """Write the first names of a list and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def ignored_note(names: Collection[str]) -> str:
    """Say which files are no images of any class; nothing where there are none."""
    told = f"{len(names)} file{'s' * (len(names) > 1)} ignored, in no class folder or no image by name: "
    return told + few(sorted(names)) if names else ""
