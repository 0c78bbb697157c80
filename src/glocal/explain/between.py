"""Between two lattices: which tokens of a fine one a token of a coarse one stands for."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.lattice import Lattice


def pooling(fine: Lattice, coarse: Lattice) -> Tensor:
    """Write each coarse token as the mean of the fine tokens it covers: (coarse, fine), rows sum to one.

    Prefix tokens stand for themselves. One that the fine lattice lacks, such as the class token that a pyramid adds
    in its last stage, has covered nothing yet: its row is zero.
    """
    cells = torch.eye(fine.height * fine.width).view(-1, 1, fine.height, fine.width)
    patches = F.adaptive_avg_pool2d(cells, (coarse.height, coarse.width)).flatten(1).T
    matrix = torch.zeros(len(coarse), len(fine))
    matrix[coarse.prefix :, fine.prefix :] = patches
    for token in range(min(coarse.prefix, fine.prefix)):
        matrix[token, token] = 1
    return matrix


def spread(attention: Tensor, queries: Lattice, keys: Lattice) -> Tensor:
    """Spread the weight of reduced keys evenly over the tokens they stand for: (..., N, M) to (..., N, N)."""
    if queries == keys:
        return attention
    return attention @ pooling(queries, keys).to(attention)


def cover(mask: Tensor, lattice: Lattice) -> Tensor:
    """Say how much of each patch a (B, H, W) mask of the image covers: (B, patches), 0 to 1."""
    shares = F.adaptive_avg_pool2d(mask[:, None].float(), (lattice.height, lattice.width))
    return shares.flatten(1)
