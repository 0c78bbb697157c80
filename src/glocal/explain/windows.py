"""Attention in windows, laid out on the whole map again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.lattice import Lattice


@dataclass(frozen=True)
class Windows:
    """How a Swin block cuts its map: rolled by `shift`, padded, then cut into windows in row-major order."""

    lattice: Lattice
    window: tuple[int, int]
    shift: tuple[int, int]

    @property
    def count(self) -> int:
        """Windows per image."""
        height, width = self.lattice.height, self.lattice.width
        return math.ceil(height / self.window[0]) * math.ceil(width / self.window[1])

    def tokens(self) -> Tensor:
        """Say which token of the map sits in each place of each window: (windows, places); padding is N."""
        height, width = self.lattice.height, self.lattice.width
        index = torch.arange(height * width).view(height, width).roll((-self.shift[0], -self.shift[1]), (0, 1))
        rows, columns = self.window
        index = F.pad(index, (0, -width % columns, 0, -height % rows), value=height * width)
        index = index.unflatten(0, (-1, rows)).unflatten(
            2, (-1, columns)
        )  # (windows down, rows, windows across, columns)
        return index.transpose(1, 2).flatten(2).flatten(0, 1)

    def assemble(self, weights: Tensor) -> Tensor:
        """Lay (B * windows, heads, n, n) out as (B, heads, N, N); a token gives nothing outside its window.

        Where a host pads its map, what tokens give to the padding is left out, so their rows sum to less than one.
        """
        total, index = len(self.lattice), self.tokens().to(weights.device)
        parts = weights.unflatten(0, (-1, self.count)).transpose(1, 2)  # (B, heads, windows, n, n)
        full = weights.new_zeros(*parts.shape[:2], total + 1, total + 1)
        full[:, :, index[:, :, None], index[:, None, :]] = parts
        return full[:, :, :total, :total]

    def in_order(self, values: Tensor) -> Tensor:
        """Put (B * windows, heads, n, ...) values of queries in the order of the map: (B, heads, N, ...)."""
        total, index = len(self.lattice), self.tokens().to(values.device)
        parts = values.unflatten(0, (-1, self.count)).transpose(1, 2)  # (B, heads, windows, n, ...)
        full = values.new_zeros(*parts.shape[:2], total + 1, *values.shape[3:])
        full[:, :, index] = parts
        return full[:, :, :total]
