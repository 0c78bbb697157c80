"""LIFE's chain of scales from tokens to q, k and v, with its plain reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.kernels.depthwise import WIDEST, depthwise, overwrite
from glocal.kernels.dispatch import pays, there, working_type
from glocal.kernels.product import product, worth
from glocal.lattice import Lattice


def multi_scale(
    tokens: Tensor, taps: Sequence[Tensor | None], mixes: Sequence[Tensor], bias: Tensor | None, lattice: Lattice
) -> Tensor:
    """Chain the scales: (B, N, C) to (B, N, 3 * sum of widths), the scales side by side within q, k and v.

    Scale i convolves patch tokens with taps[i] (None: not at all) and projects all tokens with mixes[i], a
    (3 * widths[i], channels) matrix; `bias` belongs to the first.
    """
    kind = working_type(tokens)
    small = all(each is None or each.shape[-1] <= WIDEST for each in taps)
    if not (pays(tokens) and small):
        return torch.cat(multi_scale_reference(tokens, taps, mixes, bias, lattice), dim=-1).flatten(2)
    from glocal.kernels.multi_scale_triton import multi_scale_tokens

    lattice.check(tokens, traced=True)  # a kernel finds its way by the lattice alone
    tokens = tokens.to(kind)
    tokens = tokens if tokens.stride(-1) == 1 else tokens.contiguous()
    given = [tokens.new_empty(0) if each is None else each for each in taps]
    weights = [each.to(kind).contiguous() for each in mixes]
    shift = None if bias is None else bias.to(kind).contiguous()
    sizes = (lattice.height, lattice.width, lattice.prefix)
    with there(tokens):
        return multi_scale_tokens(tokens, given, weights, shift, *sizes, torch.is_grad_enabled())[0]


def multi_scale_reference(
    tokens: Tensor, taps: Sequence[Tensor | None], mixes: Sequence[Tensor], bias: Tensor | None, lattice: Lattice
) -> list[Tensor]:
    """Compute each scale's (B, N, 3, width) in plain PyTorch."""
    scales: list[Tensor] = []
    for i, (weight, mix) in enumerate(zip(taps, mixes, strict=True)):
        tokens = tokens if weight is None else depthwise(tokens, weight, lattice)
        tokens = F.linear(tokens, mix, bias if i == 0 else None)  # (B, N, 3 * width)
        scales.append(tokens.unflatten(-1, (3, -1)))
    return scales


def multi_scale_in_place(
    tokens: Tensor, taps: Sequence[Tensor | None], mixes: Sequence[Tensor], bias: Tensor | None, lattice: Lattice
) -> Tensor:
    """Compute (B, N, 3, sum of widths) in two buffers: the result and a scale, which the next overwrites.

    Few and short steps: at one image their calls take a processor longer than their arithmetic.
    """
    lattice.check(tokens)
    images, count, _ = tokens.shape
    rows = [mix.shape[0] for mix in mixes]
    total = sum(rows)
    qkv = torch.empty(images, count, 3, total // 3, dtype=working_type(tokens), device=tokens.device)
    multiply = product if worth(tokens, max(rows)) else F.linear
    own = False
    for weight, mix, part in zip(taps, mixes, qkv.split([each // 3 for each in rows], dim=3), strict=True):
        if weight is not None:
            tokens = overwrite(tokens, weight, lattice) if own else depthwise(tokens, weight, lattice)
        tokens = multiply(tokens, mix, None if own else bias)  # (B, N, 3 * width)
        own = True
        part.copy_(tokens.view(images, count, 3, -1))
    return qkv
