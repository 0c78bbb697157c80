"""Augment a whole batch on its device, each image by numbers of its own.

torchvision's transforms draw one set of numbers for a whole batch, and from a global stream; neither allows a run to
be resumed in the middle of an epoch with the very same images. So the drawing is ours; the pixels are changed by plain
tensor operations and torchvision's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.data.chance import normal, uniforms
from glocal.data.randaugment import RandAugment, adjust, to_grey
from glocal.data.settings import Augment

_BOX, _FLIP, _JITTER, _ERASE, _RAND, _NOISE = range(0, 60, 10)  # streams of random numbers


class Augmenter:
    """Turn (B, C, H, W) uint8 images and their keys into normalised float images."""

    def __init__(self, settings: Augment, mean: Sequence[float], std: Sequence[float]) -> None:
        self.settings = settings
        self.mean, self.std = tuple(mean), tuple(std)
        self.rand = None if settings.rand is None else RandAugment.parse(settings.rand, mean)
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        """Augment; `key` stays on the CPU, so that nothing waits for the device to decide what to do."""
        chosen = self.settings
        box, flip, jitter, erase = uniforms(key, ((4, _BOX), (1, _FLIP), (3, _JITTER), (5, _ERASE)))
        if chosen.crop == "pad":
            images = _shift(images, chosen, box[:, :2])
        elif chosen.crop == "resized":
            images = _resized(images, chosen, box)
        if chosen.flip:
            mirrored = (flip[:, 0] < chosen.flip).to(images.device, non_blocking=True)
            images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        if self.rand is not None:
            images = self.rand(images, key, _RAND)
        elif chosen.jitter:
            images = _jitter(images, chosen.jitter, jitter)
        images = self.normalise(images)
        return _erase(images, chosen.erase, erase, key) if chosen.erase else images

    def normalise(self, images: Tensor) -> Tensor:
        """Bring bytes to mean 0 and deviation 1."""
        scale, shift = self._line(images.device)
        return images.float() * scale + shift

    def _line(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._constants:
            mean = torch.tensor(self.mean)[:, None, None]
            std = torch.tensor(self.std)[:, None, None]
            self._constants[device] = ((1 / (255 * std)).to(device), (-mean / std).to(device))
        return self._constants[device]


def _shift(images: Tensor, chosen: Augment, draws: Tensor) -> Tensor:
    """Pad with black and cut the original size out again, somewhere else for each image."""
    height, width = images.shape[-2:]
    span = 2 * chosen.padding + 1
    moved = (draws * span).long().clamp_(max=span - 1).to(images.device, non_blocking=True)
    padded = F.pad(images, (chosen.padding,) * 4)
    rows = moved[:, 0, None] + torch.arange(height, device=images.device)
    columns = moved[:, 1, None] + torch.arange(width, device=images.device)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def _resized(images: Tensor, chosen: Augment, draws: Tensor) -> Tensor:
    """Cut out a part of random area and shape and bring it to full size; a part that sticks out is made to fit."""
    low, high = chosen.scale
    area = low + (high - low) * draws[:, 0]
    narrow, wide = (torch.tensor(r).log() for r in chosen.ratio)
    ratio = (narrow + (wide - narrow) * draws[:, 1]).exp()
    width, height = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    matrix = torch.zeros(len(images), 2, 3)
    matrix[:, 0, 0], matrix[:, 1, 1] = width, height
    matrix[:, 0, 2] = (1 - width) * (2 * draws[:, 2] - 1)
    matrix[:, 1, 2] = (1 - height) * (2 * draws[:, 3] - 1)
    grid = F.affine_grid(matrix.to(images.device, non_blocking=True), list(images.shape), align_corners=False)
    mode = "bicubic" if chosen.interpolation == "bicubic" else "bilinear"
    return F.grid_sample(images.float(), grid, mode, "reflection", align_corners=False).clamp_(0, 255)


def _jitter(images: Tensor, strength: float, draws: Tensor) -> Tensor:
    factors = (1 + strength * (2 * draws - 1)).to(images.device, non_blocking=True)
    brightness, contrast, colour = factors.T[:, :, None, None, None]
    images = adjust(images.float(), images.new_zeros((), dtype=torch.float32), brightness)
    images = adjust(images, to_grey(images).mean((-2, -1), keepdim=True), contrast)
    return adjust(images, to_grey(images), colour)


def _erase(images: Tensor, chance: float, draws: Tensor, key: Tensor) -> Tensor:
    """Fill a box with noise in some of the images (area 2-33 %, as in timm's pixel mode)."""
    hit = torch.nonzero(draws[:, 0] < chance).flatten()
    if not len(hit):
        return images
    height, width = images.shape[-2:]
    area = 0.02 + (1 / 3 - 0.02) * draws[hit, 1]
    ratio = ((2 * draws[hit, 2] - 1) * torch.tensor(1 / 0.3).log()).exp()
    tall, broad = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    top, left = ((1 - side) * draws[hit, 3 + i] for i, side in enumerate((tall, broad)))
    box = torch.stack((top * height, (top + tall) * height, left * width, (left + broad) * width), dim=1)
    box, hit, noisy = (each.to(images.device, non_blocking=True) for each in (box.round(), hit, key[hit]))
    rows = torch.arange(height, device=images.device)[None, :, None]
    columns = torch.arange(width, device=images.device)[None, None, :]
    y0, y1, x0, x1 = (side[:, None, None] for side in box.unbind(1))
    inside = (rows >= y0) & (rows < y1) & (columns >= x0) & (columns < x1)  # (hits, H, W)
    noise = normal(noisy, images[0].numel(), _NOISE).view(-1, *images.shape[1:])
    return images.index_copy(0, hit, torch.where(inside[:, None], noise, images[hit]))
