"""LocalFFN's hidden tokens at inference in one launch: activation, convolution, bias, activation, sums to pool."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import triton_op

from glocal.kernels.convolve_triton import Place, convolve
from glocal.kernels.naming import operator_name


@triton_op(operator_name("hidden"), mutates_args={})
def hidden_tokens(
    tokens: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    height: int,
    width: int,
    prefix: int,
    before: int,
    after: int,
    pool: bool,
) -> list[Tensor]:
    """Give the hidden tokens and, when `pool`, their mean over the patches, (B, C)."""
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    group, lattice = (tokens.shape[-1], 1), (height, width, prefix)
    sums = convolve(
        Place(tokens),
        weight,
        Place(out),
        lattice,
        group,
        bias=bias,
        around=(before, after),
        sums="lines" if pool else "",
    )
    return [out, (sums.sum(1) / (height * width)).to(tokens.dtype)]
