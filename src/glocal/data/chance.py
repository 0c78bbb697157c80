"""Random numbers that belong to an image, not to a moment: the same for any batch, process count, device or resume."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

# Constants of SplitMix64, a mixing function whose output passes the usual tests of randomness.
_STEP = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_ALL = (1 << 64) - 1


def uniform(key: Tensor, draws: int, stream: int = 0) -> Tensor:
    """Draw numbers in [0, 1) for each key; (B,) keys give (B, draws). Streams are independent of each other."""
    return uniforms(key, ((draws, stream),))[0]


def uniforms(key: Tensor, streams: tuple[tuple[int, int], ...]) -> tuple[Tensor, ...]:
    """Draw from several (draws, stream) at once: the numbers of one by one in a fraction of the calls."""
    bits = _mix(key[:, None] + _counters(streams, key.device))
    drawn = _right(bits, 40).float().div_(1 << 24)  # 24 bits: every value is exact in float32
    return drawn.split([draws for draws, _ in streams], dim=1)


def normal(key: Tensor, draws: int, stream: int = 0) -> Tensor:
    """Draw standard normal numbers for each key."""
    pairs = (draws + 1) // 2
    return to_normal(*uniforms(key, ((pairs, stream), (pairs, stream + 1))))[:, :draws]


def to_normal(first: Tensor, second: Tensor) -> Tensor:
    """Turn pairs of uniform numbers into twice as many normal ones (Box and Muller)."""
    radius, angle = torch.log1p(-first).mul_(-2).sqrt_(), second * (2 * torch.pi)
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)


def keys(seed: int, epoch: int, index: Tensor, copy: Tensor | int = 0) -> Tensor:
    """Make one key per image from the run's seed, the epoch, the image's index and which of its copies it is."""
    key = torch.full_like(index, seed, dtype=torch.int64)
    for part in (epoch, index, copy):
        key = _mix(key * _FIRST + part + _STEP)
    return key


def number(*parts: int) -> int:
    """Mix whole numbers into one seed below 2**31; the same mixing, in plain Python, as it is asked every step."""
    key = 0
    for part in parts:
        key = key * _FIRST + part + _STEP & _ALL
        key = (key ^ key >> 30) * _FIRST & _ALL
        key = (key ^ key >> 27) * _SECOND & _ALL
        key ^= key >> 31
    return key >> 33


@lru_cache(maxsize=32)
def _counters(streams: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(1, draws + 1, device=device) + (stream << 32) for draws, stream in streams]) * _STEP


def _mix(x: Tensor) -> Tensor:
    """Mix numbers in place; every caller has just made them."""
    x.bitwise_xor_(_right(x, 30)).mul_(_FIRST)
    x.bitwise_xor_(_right(x, 27)).mul_(_SECOND)
    return x.bitwise_xor_(_right(x, 31))


def _right(x: Tensor, by: int) -> Tensor:
    # torch shifts signed numbers; the copies of the sign go
    return (x >> by).bitwise_and_((1 << (64 - by)) - 1)
