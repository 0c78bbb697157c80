"""Images with boxes or label maps: what a run says of them, and how they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from glocal.data.check import Check
from glocal.data.images import IMAGENET, few
from glocal.errors import GlocalError


@dataclass(frozen=True)
class Dense:
    """How images with boxes or label maps are brought to size and changed."""

    fit: Literal["square", "shorter", "crop"] = "square"
    """`square`: the whole image to `data.size`; `shorter`: its shorter side to one of `sides`, the longer at most
    `longest`; `crop`: the shorter side to that of `data.size` times a number within `scale`, then a random part."""
    eval_fit: Literal["square", "shorter", "slide"] = "square"
    """`slide`: windows of `data.size` over the whole image, for segmentation."""
    sides: tuple[int, ...] = (800,)
    longest: int = 1333
    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = 0.5
    jitter: float = 0.0
    """Strength of changes in brightness, contrast and saturation."""
    zoom: float = 0.0
    """Chance of a smaller or a cut image, boxes along with it (SSD's augmentation)."""
    classes: tuple[str, ...] = ()
    """Names of the classes; what the data name when not given."""
    ignore: int | None = None
    """Label value that counts for nothing; the layout's own (255, or 11 in CamVid) when not given."""
    passes: int = 1
    """How often an epoch goes through the images; more mean fewer evaluations on a small set."""

    def __post_init__(self) -> None:
        check = Check(self, "data.dense")
        check.between(0, 1, "flip", "zoom", why="a chance lies")
        check.at_least(0, "jitter")
        check.at_least(1, "sides", "longest", "passes")
        low, high = self.scale
        if not 0 < low <= high < inf:
            check.refuse(f"data.dense.scale is {self.scale}; it takes the smaller number first, above 0.", "scale")
        if not self.sides:
            check.refuse("data.dense.sides is empty; it takes one length or more, such as [480, 512].", "sides")
        elif self.longest < max(self.sides):
            told = f"data.dense.longest is {self.longest}; it is no less than the largest of sides, {max(self.sides)}."
            check.refuse(told, "longest", "sides")
        check.done()


@dataclass(frozen=True)
class Boxed:
    """An image and its objects: (n, 4) corners in pixels, (n,) labels from 0, and which of them no one should learn."""

    image: Path
    size: tuple[int, int]
    boxes: Tensor
    labels: Tensor
    hard: Tensor
    """Difficult ones and crowds: not learned, and neither asked for nor counted against anyone."""
    outlines: tuple[Any, ...] = ()
    """COCO's polygons or run lengths, one per object, where there are masks."""


@dataclass(frozen=True)
class Labelled:
    """An image and its label map."""

    image: Path
    labels: Path


@dataclass(frozen=True)
class DenseImages:
    """One part of a set."""

    samples: Sequence[Boxed] | Sequence[Labelled]
    classes: tuple[str, ...]
    ignore: int = 255
    table: tuple[int, ...] | None = None
    """Class of each label value, where the files use other numbers."""
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, index: int) -> str:
        """Name an image in a message."""
        return self.samples[index].image.name


@dataclass(frozen=True)
class DensePair:
    """The two parts of a set."""

    train: DenseImages
    val: DenseImages
    notes: tuple[str, ...] = ()


@dataclass
class Findings:
    """What is wrong with a set, gathered while it is opened, and told once."""

    unusable: list[str] = field(default_factory=list[str])
    """Images that must be left out."""
    mended: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What was done about the rest, and to which images."""

    def mend(self, what: str, image: str) -> None:
        """Note what was done to an image."""
        self.mended.setdefault(what, []).append(image)

    def notes(self, limit: int) -> tuple[str, ...]:
        """Write the findings; raise when more images are unusable than may be."""
        told = [f"{len(names)} {what}: {few(sorted(set(names)))}" for what, names in self.mended.items()]
        if not self.unusable:
            return tuple(told)
        text = f"{len(self.unusable)} image{'s' * (len(self.unusable) > 1)} cannot be used: {few(self.unusable)}"
        if len(self.unusable) > limit:
            raise GlocalError(f"{text}. At most {limit} may be left out; mend them, or raise data.unreadable.")
        return (f"{text}; left out", *told)


def clean(boxes: Tensor, size: tuple[int, int], name: str, findings: Findings) -> tuple[Tensor, Tensor]:
    """Cut (n, 4) corners to the image, and tell which keep an area; what was done is noted."""
    height, width = size
    flat = (boxes[:, 2:] <= boxes[:, :2]).any(dim=1)
    cut = torch.minimum(boxes.clamp(min=0), boxes.new_tensor((width, height, width, height)))
    gone = ~flat & (cut[:, 2:] <= cut[:, :2]).any(dim=1)
    outside = ~flat & ~gone & ((boxes - cut).abs() > 1).any(dim=1)  # a pixel is a matter of counting
    for mask, what in (
        (flat, "boxes without area left out"),
        (gone, "boxes wholly outside their image left out"),
        (outside, "boxes that reach outside their image cut to it"),
    ):
        for _ in range(int(mask.sum())):
            findings.mend(what, name)
    return cut, ~(flat | gone)
