"""Labelled images: held in memory as bytes, or read from files one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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
class FileImages:
    """Images behind a timm dataset, and which of its entries belong to the set."""

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
        """Read an image as RGB; raises OSError where that cannot be done."""
        entry = int(self.chosen[index])
        if hasattr(self.dataset, "reader"):  # timm's own retry would silently put another image in its place
            from PIL import Image

            stream = self.dataset.reader[entry][0]
            image = stream if isinstance(stream, Image.Image) else Image.open(stream)
            return image.convert("RGB")
        return self.dataset[entry][0].convert("RGB")


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
