"""LIFE's chain of scales as an operator: tokens convolved, projected and scattered into q, k and v, never joined."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_autograd, triton_op

from glocal.kernels.convolve_triton import Place, convolve
from glocal.kernels.naming import operator_name
from glocal.kernels.project_triton import project
from glocal.kernels.taps_triton import tap_gradient


def run_multi_scale(
    tokens: Tensor,
    taps: list[Tensor],
    mixes: list[Tensor],
    bias: Tensor | None,
    height: int,
    width: int,
    prefix: int,
    keep: bool,
) -> list[Tensor]:
    """Give (B, N, 3 * sum of widths), then what entered each scale's projection when `keep`."""
    images, count, _ = tokens.shape
    widths = [mix.shape[0] // 3 for mix in mixes]
    full = sum(widths)
    out = tokens.new_empty(images, count, 3 * full)
    kept: list[Tensor] = []
    for i, (weight, mix) in enumerate(zip(taps, mixes, strict=True)):
        entered = _entering(tokens, weight, out, i, widths, (height, width, prefix))
        project(entered.flatten(0, 1), mix, bias if i == 0 else None, out.flatten(0, 1), full, sum(widths[:i]))
        kept.append(entered if keep and weight.numel() else tokens.new_empty(0))
    return [out, *kept]


multi_scale_tokens = triton_op(operator_name("multi_scale"), run_multi_scale, mutates_args={})


@triton_op(operator_name("multi_scale_backward"), mutates_args={})
def multi_scale_backward(
    grad: Tensor,
    tokens: Tensor,
    out: Tensor,
    kept: list[Tensor],
    taps: list[Tensor],
    mixes: list[Tensor],
    height: int,
    width: int,
    prefix: int,
) -> list[Tensor]:
    """Give the gradients of the tokens, the bias, each scale's taps and each scale's projection."""
    lattice = (height, width, prefix)
    images, count, _ = tokens.shape
    widths = [mix.shape[0] // 3 for mix in mixes]
    full = sum(widths)
    parts = grad.view(images, count, 3, full)
    tap_gradients, mix_gradients = [torch.empty_like(each) for each in taps], list(mixes)
    bias_gradient = mixes[0]
    arriving = parts[..., full - widths[-1] :].reshape(images * count, 3 * widths[-1])
    compiled = type(grad) is not Tensor  # a stand-in; is_compiling() says no here before torch 2.15
    for i in reversed(range(len(mixes))):
        before = sum(widths[: i - 1]) if i else 0
        dim = mixes[i].shape[1]
        entered = kept[i] if taps[i].numel() else _source(tokens, out, i, widths)
        mix_gradients[i] = arriving.t() @ entered.reshape(images * count, dim)
        if i == 0:
            bias_gradient = arriving.sum(0, dtype=torch.float32).to(grad.dtype)
        inward = (arriving @ mixes[i]).view(images, count, dim)
        group = (widths[i - 1], 3) if i else (dim, 1)
        at, added = (full, before) if i else (0, 0), False
        if taps[i].numel():
            dense = Place(inward, group[0])
            tap_gradients[i] = tap_gradient(Place(out if i else tokens, *at), dense, taps[i], lattice, group)
            # Compiled, the gradient is a stack that nobody has written yet: a kernel that adds would have it written
            # out, whole, each time. The compiler's own sum reads what it needs.
            add = Place(grad, *at) if i and not compiled else None
            outward = torch.empty_like(inward)
            convolve(dense, taps[i], Place(outward, group[0]), lattice, group, flip=True, add=add)
            inward, added = outward, add is not None
        if i and not added:
            inward = inward + parts[..., before : before + widths[i - 1]].reshape(inward.shape)
        arriving = inward.view(images * count, dim)
    return [arriving.view(tokens.shape), bias_gradient, *tap_gradients, *mix_gradients]


def _source(tokens: Tensor, out: Tensor, i: int, widths: list[int]) -> Tensor:
    """Find what scale i starts from: the tokens, or the scale before."""
    if i == 0:
        return tokens
    start = sum(widths[: i - 1])
    return out.unflatten(-1, (3, -1))[..., start : start + widths[i - 1]].flatten(2)


def _entering(
    tokens: Tensor, weight: Tensor, out: Tensor, i: int, widths: list[int], lattice: tuple[int, int, int]
) -> Tensor:
    """Give what scale i projects: what it starts from, convolved."""
    if not weight.numel():
        return _source(tokens, out, i, widths)
    share, parts = (widths[i - 1], 3) if i else (tokens.shape[-1], 1)
    entered = tokens.new_empty(*tokens.shape[:2], share * parts)
    place = Place(out, sum(widths), sum(widths[: i - 1])) if i else Place(tokens)
    convolve(place, weight, Place(entered, share), lattice, (share, parts))
    return entered


def _keep(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # nobody asks what the kept results are worth
    tokens, taps, mixes, bias, *lattice, _ = inputs
    out, *kept = output
    ctx.scales, ctx.lattice, ctx.biased = len(taps), lattice, bias is not None
    ctx.save_for_backward(tokens, out, *kept, *taps, *mixes)


def _back(ctx, grads: list[Tensor]):
    tokens, out, *rest = ctx.saved_tensors
    s = ctx.scales
    kept, taps, mixes = rest[:s], rest[s : 2 * s], rest[2 * s :]
    first, bias, *others = multi_scale_backward(grads[0].contiguous(), tokens, out, kept, taps, mixes, *ctx.lattice)
    return first, others[:s], others[s:], bias if ctx.biased else None, None, None, None, None


register_autograd(operator_name("multi_scale"), _back, setup_context=_keep)
