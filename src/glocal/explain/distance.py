"""How far attention reaches: relative distance by layer.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention", section 3.3, Figure 7b.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from glocal.errors import GlocalError
from glocal.lattice import Lattice


def positions(lattice: Lattice) -> Tensor:
    """Give the centre of every patch as (row, column) from 0 to 1: (patches, 2)."""
    rows = (torch.arange(lattice.height) + 0.5) / lattice.height
    columns = (torch.arange(lattice.width) + 0.5) / lattice.width
    return torch.cartesian_prod(rows, columns).view(-1, 2)


def distances(queries: Lattice, keys: Lattice | None = None) -> Tensor:
    """Measure the L1 distance of every patch to every patch: (patches, patches)."""
    return torch.cdist(positions(queries), positions(keys or queries), p=1)


def relative_distance(
    attention: Tensor,
    queries: Lattice,
    keys: Lattice | None = None,
    *,
    average: Literal["pairs", "tokens"] = "pairs",
) -> Tensor:
    """Average a_ij * |p_i - p_j| over i ≠ j by head: (B, heads, N, M) to (B, heads); prefix tokens do not count.

    `pairs` is the paper's expectation over all pairs, which shrinks as 1 / N; `tokens` adds up what each token looks
    at and averages over tokens: the mean distance of a look, which does not.
    """
    if average not in ("pairs", "tokens"):
        raise GlocalError(f"average {average!r} is not known. Use 'pairs' (the paper) or 'tokens'.")
    keys = keys or queries
    weights = attention[..., queries.prefix :, keys.prefix :]
    far = (weights.float() * distances(queries, keys).to(weights.device)).sum(dim=(-2, -1))  # i = j adds nothing
    count = weights.shape[-2]
    others = weights.shape[-1] - (queries == keys)
    return far / (count * others if average == "pairs" else count)
