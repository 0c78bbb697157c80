"""Random numbers that belong to an image, not to a moment: the same for any batch, process count, device or resume."""

from __future__ import annotations

import torch
from torch import Tensor

# Constants of SplitMix64, a mixing function whose output passes the usual tests of randomness.
_STEP = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
_ALL = (1 << 64) - 1


def uniform(key: Tensor, draws: int, stream: int = 0) -> Tensor:
    """Draw numbers in [0, 1) for each key; (B,) keys give (B, draws). Streams are independent of each other."""
    counter = torch.arange(1, draws + 1, device=key.device) + (stream << 32)
    bits = _mix(key[:, None] + counter * _STEP)
    return (_right(bits, 40)).float() / (1 << 24)  # 24 bits: every value is exact in float32


def normal(key: Tensor, draws: int, stream: int = 0) -> Tensor:
    """Draw standard normal numbers for each key."""
    first, second = uniform(key, draws, stream), uniform(key, draws, stream + 1)
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * torch.pi * second)


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


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _right(x, 30)) * _FIRST
    x = (x ^ _right(x, 27)) * _SECOND
    return x ^ _right(x, 31)


def _right(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)  # torch shifts signed numbers; the copies of the sign go
