"""Depth-wise convolution of tokens as an operator that autograd and the compiler see; prefix tokens pass along."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_autograd, triton_op

from glocal.kernels.convolve_triton import Place, convolve
from glocal.kernels.naming import operator_name
from glocal.kernels.taps_triton import tap_gradient


def run_depthwise(
    tokens: Tensor, weights: list[Tensor], widths: list[int], parts: int, height: int, width: int, prefix: int
) -> Tensor:
    """Convolve groups of channels, each with its own kernel; see `glocal.kernels.depthwise`."""
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    _each_group(tokens, out, weights, widths, parts, (height, width, prefix), flip=False)
    return out


depthwise_tokens = triton_op(operator_name("depthwise"), run_depthwise, mutates_args={})


@triton_op(operator_name("depthwise_backward"), mutates_args={})
def depthwise_backward(
    grad: Tensor,
    tokens: Tensor,
    weights: list[Tensor],
    widths: list[int],
    parts: int,
    height: int,
    width: int,
    prefix: int,
) -> list[Tensor]:
    """Give the gradients of the tokens and of each group's weight."""
    lattice, part = (height, width, prefix), sum(widths)
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    _each_group(grad, out, weights, widths, parts, lattice, flip=True)
    gradients, start = [out], 0
    for weight, share in zip(weights, widths, strict=True):
        places = (Place(tokens, part, start), Place(grad, part, start))
        gradients.append(
            tap_gradient(*places, weight, lattice, (share, parts)) if weight.numel() else torch.empty_like(weight)
        )
        start += share
    return gradients


def _each_group(
    x: Tensor,
    out: Tensor,
    weights: list[Tensor],
    widths: list[int],
    parts: int,
    lattice: tuple[int, int, int],
    flip: bool,
) -> None:
    part, start = sum(widths), 0
    for weight, share in zip(weights, widths, strict=True):
        if weight.numel():
            convolve(Place(x, part, start), weight, Place(out, part, start), lattice, (share, parts), flip=flip)
        else:  # the group passes as it is
            here, there = (each.unflatten(2, (parts, part))[..., start : start + share] for each in (x, out))
            there.copy_(here)
        start += share


def _keep(ctx, inputs, output) -> None:
    tokens, weights, *rest = inputs
    ctx.save_for_backward(tokens, *weights)
    ctx.rest = rest


def _back(ctx, grad: Tensor):
    tokens, *weights = ctx.saved_tensors
    first, *others = depthwise_backward(grad.contiguous(), tokens, weights, *ctx.rest)
    return first, others, None, None, None, None, None


register_autograd(operator_name("depthwise"), _back, setup_context=_keep)
