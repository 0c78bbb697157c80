"""Change an image together with its boxes, masks or label map: torchvision's transforms, drawn from one key."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from glocal.data.dense import Boxed, Dense, DenseImages


def training(settings: Dense, size: tuple[int, int], images: DenseImages) -> v2.Transform:
    """Write a run's settings as transforms for training."""
    steps: list[Any] = [v2.ToImage()]
    if settings.zoom:
        fill = {tv_tensors.Image: _grey(images), "others": 0}
        steps += [v2.RandomZoomOut(fill=fill, side_range=(1.0, 2.0), p=settings.zoom / 2)]
        steps += [v2.RandomApply([_part()], p=settings.zoom)]
    if settings.fit == "square":
        steps.append(v2.Resize(size, antialias=True))
    elif settings.fit == "shorter":
        steps.append(v2.RandomShortestSize(list(settings.sides), settings.longest, antialias=True))
    else:
        steps += [_Scale(min(size), settings.scale), _crop(size, images)]
    steps += [v2.RandomHorizontalFlip(settings.flip)] if settings.flip else []
    if settings.jitter:
        steps.append(v2.ColorJitter(*(settings.jitter,) * 3))
    if isinstance(images.samples[0], Boxed):
        steps.append(v2.SanitizeBoundingBoxes(min_size=1))  # what a cut left without area
    return v2.Compose([*steps, v2.ToPureTensor()])


def evaluation(settings: Dense, size: tuple[int, int]) -> v2.Transform:
    """Write a run's settings as transforms for evaluation; nothing is drawn."""
    resize: Any = v2.Resize(size, antialias=True)
    if settings.eval_fit == "shorter":
        resize = v2.Resize(max(settings.sides), max_size=settings.longest, antialias=True)
    elif settings.eval_fit == "slide":
        resize = v2.Resize(min(size), antialias=True)
    return v2.Compose([v2.ToImage(), resize, v2.ToPureTensor()])


class _Scale(v2.Transform):
    """Bring the shorter side to a length times a random number."""

    def __init__(self, side: int, scale: tuple[float, float]) -> None:
        super().__init__()
        self.side, self.scale = side, scale

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        low, high = self.scale
        return {"size": max(round(self.side * (low + (high - low) * float(torch.rand(())))), 1)}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return v2.functional.resize(inpt, [params["size"]], antialias=True)


def _part() -> v2.Transform:
    return v2.RandomIoUCrop(min_scale=0.5, sampler_options=[0.3, 0.5, 0.7, 1.0], trials=20)


def _crop(size: tuple[int, int], images: DenseImages) -> v2.Transform:
    fill: dict[Any, Any] = {tv_tensors.Image: _grey(images), tv_tensors.Mask: images.ignore, "others": 0}
    return v2.RandomCrop(size, pad_if_needed=True, fill=fill)


def _grey(images: DenseImages) -> list[int]:
    return [round(255 * channel) for channel in images.mean]
