"""How a segmenter fares on spoilt images: noise and blur (Context Broadcasting, Table 9).

The kinds of noise are those of Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions
and Perturbations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import gaussian_blur

from glocal.measure.segmentation import PixelTally
from glocal.measure.statistics import gain

Spoil = Callable[[Tensor, torch.Generator], Tensor]


def shot_noise(pixels: Tensor, generator: torch.Generator, photons: float = 60.0) -> Tensor:
    """Count photons: `photons` of them make white, and dark places get few."""
    rate = pixels.float() / 255 * photons
    return _bytes(torch.poisson(rate, generator) / photons * 255)


def gaussian_noise(pixels: Tensor, generator: torch.Generator, sigma: float = 5.0) -> Tensor:
    """Add normal noise; sigma is on the scale of bytes."""
    return _bytes(pixels.float() + sigma * torch.randn(pixels.shape, generator=generator))


def blur(pixels: Tensor, generator: torch.Generator, sigma: float = 1.0) -> Tensor:
    """Blur by a Gaussian of sigma pixels; nothing is drawn."""
    side = 2 * round(4 * sigma) + 1
    return gaussian_blur(pixels, [side, side], [sigma, sigma])


SPOILT: dict[str, Spoil] = {
    "shot_noise": shot_noise,
    "gaussian_noise_5": partial(gaussian_noise, sigma=5.0),
    "gaussian_noise_10": partial(gaussian_noise, sigma=10.0),
    "gaussian_blur_1": partial(blur, sigma=1.0),
    "gaussian_blur_2": partial(blur, sigma=2.0),
}


@dataclass(frozen=True)
class Spoilt:
    """The mIoU in percent on images spoilt in one way: mean over the runs, and half the 95 % interval."""

    name: str
    miou: float
    interval: float
    runs: tuple[float, ...]


def robustness(
    look: Callable[[Tensor], Tensor],
    samples: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    classes: int,
    ignore: int,
    runs: int = 5,
    seed: int = 0,
) -> list[Spoilt]:
    """Measure whole and spoilt images; noise is drawn anew in each run, and the same for every model.

    `look` tells a (3, H, W) image's (H, W) classes; `samples` gives images with label maps.
    """
    results = [Spoilt("clean", *_summed([_miou(look, samples, classes, ignore, None, seed)]))]
    for name, spoil in SPOILT.items():
        times = 1 if name.startswith("gaussian_blur") else runs  # blur is the same each time
        found = [_miou(look, samples, classes, ignore, spoil, seed + run) for run in range(times)]
        results.append(Spoilt(name, *_summed(found)))
    return results


def _miou(
    look: Callable[[Tensor], Tensor],
    samples: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    classes: int,
    ignore: int,
    spoil: Spoil | None,
    seed: int,
) -> float:
    generator = torch.Generator().manual_seed(seed)
    tally = PixelTally(classes, ignore, torch.device("cpu"))
    for pixels, labels in samples():
        tally.add(look(pixels if spoil is None else spoil(pixels, generator)).cpu(), labels)
    return tally.figures()["miou"]


def _summed(found: list[float]) -> tuple[float, float, tuple[float, ...]]:
    estimate = gain([0.0] * len(found), found)
    half = 0.0 if estimate.high is None else estimate.high - estimate.mean
    return estimate.mean, half, tuple(found)


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)
