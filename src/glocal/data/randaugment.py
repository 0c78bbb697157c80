"""RandAugment for a batch, with timm's operations and levels, each image with draws of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as TF

from glocal.data.chance import to_normal, uniforms
from glocal.errors import GlocalError

# The first five share one resampling; operations of one kind are done together.
_AFFINE = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_COLOUR = (
    "contrast_full",
    "equalize",
    "invert",
    "posterize",
    "solarize",
    "solarize_add",
    "colour",
    "contrast",
    "brightness",
    "sharpness",
)


@dataclass(frozen=True)
class RandAugment:
    """`layers` operations per image, each done with a chance of one half, as timm does."""

    magnitude: float
    deviation: float
    increasing: bool
    layers: int
    mean: tuple[float, ...]

    @classmethod
    def parse(cls, text: str, mean: Sequence[float]) -> RandAugment:
        """Read timm's notation, such as rand-m9-mstd0.5-inc1."""
        name, *parts = text.split("-")
        found = {key: float(value) for key, value in (_section(part, text) for part in parts)}
        if name != "rand" or set(found) - {"m", "mstd", "inc", "n"}:
            raise GlocalError(f"augment.rand {text!r} is not understood. Write it as timm does: rand-m9-mstd0.5-inc1.")
        layers = int(found.get("n", 2))
        return cls(found.get("m", 10), found.get("mstd", 0), bool(found.get("inc", 0)), layers, tuple(mean))

    def __call__(self, images: Tensor, key: Tensor, stream: int) -> Tensor:
        """Change (B, C, H, W) images in the range of bytes."""
        images = images.float()
        streams = [(count, stream + 3 * layer + i) for layer in range(self.layers) for i, count in enumerate((3, 1, 1))]
        drawn = uniforms(key, tuple(streams))
        for layer in range(self.layers):
            draws, first, second = drawn[3 * layer : 3 * layer + 3]
            images = self._layer(images, draws, to_normal(first, second)[:, 0])
        return images

    def _layer(self, images: Tensor, draws: Tensor, bell: Tensor) -> Tensor:
        count = len(_AFFINE) + len(_COLOUR)
        # 1-5 are affine, then colours; 0 leaves the image alone.
        chosen = 1 + (draws[:, 0] * count).long().clamp_(max=count - 1)
        chosen = torch.where(draws[:, 1] < 0.5, chosen, 0)
        level = (self.magnitude + self.deviation * bell).clamp_(0, 10) / 10
        sign = torch.where(draws[:, 2] < 0.5, -1.0, 1.0)
        # Images are sorted by operation, so that each operation works on one slice without a copy or a wait.
        by_kind = torch.where((chosen > 0) & (chosen <= len(_AFFINE)), 1, chosen)
        order = by_kind.argsort(stable=True)
        counts = torch.bincount(by_kind, minlength=count + 1).tolist()
        level, sign, chosen = level[order], sign[order], chosen[order]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        there, back, numbers = (
            each.to(images.device, non_blocking=True) for each in (order, back, self._numbers(level, sign))
        )
        parts, numbers = list(images[there].split(counts)), numbers.split(counts, dim=1)
        if counts[1]:
            moved = slice(counts[0], counts[0] + counts[1])
            parts[1] = _affine(parts[1], chosen[moved], level[moved], sign[moved], self.mean)
        for i, name in enumerate(_COLOUR, start=1 + len(_AFFINE)):
            if counts[i]:
                parts[i] = _colour(name, parts[i], numbers[i])
        return torch.cat(parts)[back]

    def _numbers(self, level: Tensor, sign: Tensor) -> Tensor:
        """Write levels as what operations ask for: a step, a threshold, a summand, a factor; (4, B)."""
        bits, limit = (level * 4).floor(), (level * 256).floor()
        if self.increasing:
            bits, limit, factor = 4 - bits, 256 - limit, (1 + 0.9 * level * sign).clamp(min=0.1)
        else:
            factor = 0.1 + 1.8 * level
        return torch.stack((2 ** (8 - bits), limit, (level * 110).floor(), factor))


def _colour(name: str, x: Tensor, numbers: Tensor) -> Tensor:
    step, limit, summand, factor = numbers[:, :, None, None, None]
    if name == "contrast_full":
        return TF.autocontrast(x.round().to(torch.uint8)).float()
    if name == "equalize":
        return TF.equalize(x.round().to(torch.uint8)).float()
    if name == "invert":
        return 255 - x
    if name == "posterize":
        return (x / step).floor_() * step
    if name == "solarize":
        return torch.where(x < limit, x, 255 - x)
    if name == "solarize_add":
        return torch.where(x < 128, (x + summand).clamp_(max=255), x)
    return adjust(x, _base(name, x), factor)


def _base(name: str, x: Tensor) -> Tensor:
    """Give what a factor moves an image away from or towards."""
    if name == "colour":
        return to_grey(x)
    if name == "contrast":
        return to_grey(x).mean((-2, -1), keepdim=True)
    return x.new_zeros(()) if name == "brightness" else _smooth(x)


def adjust(images: Tensor, base: Tensor, factor: Tensor) -> Tensor:
    """Move images away from (factor > 1) or towards a base; one factor an image, (B, 1, 1, 1)."""
    return torch.lerp(base, images, factor).clamp_(0, 255)


def to_grey(images: Tensor) -> Tensor:
    """Weigh the colours as the eye does; grey images stay."""
    return TF.rgb_to_grayscale(images) if images.shape[1] == 3 else images


def _affine(x: Tensor, kind: Tensor, level: Tensor, sign: Tensor, mean: Sequence[float]) -> Tensor:
    height, width = x.shape[-2:]
    amount = level * sign
    turn = torch.deg2rad(30 * amount) * (kind == 1)
    matrix = torch.zeros(len(x), 2, 3)
    matrix[:, 0, 0] = matrix[:, 1, 1] = turn.cos()
    tilt_x = 0.3 * amount * (kind == 2) * height / width
    tilt_y = 0.3 * amount * (kind == 3) * width / height
    matrix[:, 0, 1] = tilt_x - turn.sin() * height / width
    matrix[:, 1, 0] = tilt_y + turn.sin() * width / height
    # The grid spans two; Pillow shears from the first row and column on.
    matrix[:, 0, 2] = 2 * 0.45 * amount * (kind == 4) + tilt_x
    matrix[:, 1, 2] = 2 * 0.45 * amount * (kind == 5) + tilt_y
    grid = F.affine_grid(matrix.to(x.device, non_blocking=True), list(x.shape), align_corners=False)
    fill = torch.tensor(mean)[:, None, None].to(x.device, non_blocking=True) * 255
    return F.grid_sample(x - fill, grid, "bilinear", "zeros", align_corners=False) + fill


def _smooth(x: Tensor) -> Tensor:
    """Pillow's smoothing: a 3x3 mean with a heavier middle; the border stays."""
    kernel = torch.ones(3, 3)
    kernel[1, 1] = 5
    weight = (kernel / 13).expand(x.shape[1], 1, 3, 3).to(x.device, non_blocking=True)
    out = x.clone()
    if min(x.shape[-2:]) > 2:
        out[..., 1:-1, 1:-1] = F.conv2d(x, weight, groups=x.shape[1])
    return out


def _section(part: str, text: str) -> tuple[str, str]:
    match = re.fullmatch(r"([a-z]+)([\d.]+)", part)
    if not match:
        raise GlocalError(f"augment.rand {text!r} is not understood at {part!r}. Write it as rand-m9-mstd0.5-inc1.")
    return match[1], match[2]
