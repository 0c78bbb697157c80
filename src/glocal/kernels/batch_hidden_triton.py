"""LocalFFN's hidden tokens in training as an operator: norm, activation, convolution, norm, activation, gate.

Two maps are kept, what enters and what the convolution gives, and each pass over them does all it can.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import register_autograd, triton_op
from torch.nn import functional as F

from glocal.kernels.convolve_triton import Place, convolve
from glocal.kernels.naming import operator_name
from glocal.kernels.rows_triton import Line, gate, gate_sums, moments, through
from glocal.kernels.taps_triton import tap_gradient


def run_batch_hidden(
    tokens: Tensor,
    first: list[Tensor],
    taps: Tensor,
    second: list[Tensor],
    eps: list[float],
    squeeze: list[Tensor],
    height: int,
    width: int,
    prefix: int,
    act: int,
) -> list[Tensor]:
    """Give the hidden tokens, zero for prefix ones; then what backward needs, means and variances of both norms in it.

    `first` and `second` are weight and bias of a norm, `squeeze` those of SE's two layers, or nothing.
    """
    lattice, group = (height, width, prefix), (tokens.shape[-1], 1)
    patches = tokens.shape[0] * height * width
    mean, var = _spread(moments(tokens, prefix).sum((0, 1)), patches)
    line = _line(mean, var, first, eps[0])
    convolved = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    totals = convolve(Place(tokens), taps, Place(convolved), lattice, group, around=(act, 0), sums="totals", line=line)
    mean2, var2 = _spread(totals.sum(0), patches)
    line2 = _line(mean2, var2, second, eps[1])
    pooled = _pooled(convolved, lattice, line2, act, squeeze)
    hidden = gate(convolved, prefix, line2, act, _factor(pooled, squeeze)[0])
    return [hidden, convolved, mean, var, mean2, var2, pooled]


batch_hidden_tokens = triton_op(operator_name("batch_hidden"), run_batch_hidden, mutates_args={})


@triton_op(operator_name("batch_hidden_backward"), mutates_args={})
def batch_hidden_backward(
    grad: Tensor,
    tokens: Tensor,
    convolved: Tensor,
    seen: list[Tensor],
    first: list[Tensor],
    taps: Tensor,
    second: list[Tensor],
    eps: list[float],
    squeeze: list[Tensor],
    height: int,
    width: int,
    prefix: int,
    act: int,
) -> list[Tensor]:
    """Give the gradients of tokens, taps, the norms' weights and biases, and the squeeze's.

    `seen` are the norms' means and variances, and the mean that the gate saw.
    """
    lattice, group = (height, width, prefix), (tokens.shape[-1], 1)
    mean, var, mean2, var2, pooled = seen
    line, line2 = _line(mean, var, first, eps[0]), _line(mean2, var2, second, eps[1])
    factor, *inner = _factor(pooled, squeeze)
    products = gate_sums(grad, convolved, prefix, line2, act)  # (B, 5, C)
    by_factor, by_grad, steep, by_grad_h, steep_h = products.unbind(1)
    more, squeezed = _squeeze_back(by_factor, pooled, inner, squeeze)
    more = more / (height * width)  # the mean hands its gradient to every patch
    sums2 = (factor * by_grad + more * steep).sum(0), (factor * by_grad_h + more * steep_h).sum(0)
    inward = through(grad, convolved, prefix, line2, sums2, act=act, gate=(factor, more))
    back = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    totals = convolve(
        Place(inward), taps, Place(back), lattice, group, flip=True, around=(act, 0), line=line, back=tokens
    ).sum(0)
    tap = tap_gradient(Place(tokens), Place(inward), taps, lattice, group, line=line, before=act)
    sums = totals[0].clone(), totals[1].clone()  # results of an operator may not share memory
    before = through(back, tokens, prefix, line, sums)
    norms = [sums[1], sums[0], sums2[1], sums2[0]]
    like = [*first, *second]
    return [before, tap, *(a.to(b.dtype) for a, b in zip(norms, like, strict=True)), *squeezed]


def run_batch_tokens(tokens: Tensor, norm: list[Tensor], eps: float, prefix: int) -> list[Tensor]:
    """Normalise patches over the batch; prefix tokens become zero. Gives mean and variance, too."""
    mean, var = _spread(moments(tokens, prefix).sum((0, 1)), tokens.shape[0] * (tokens.shape[1] - prefix))
    one = torch.ones(tokens.shape[0], tokens.shape[2], dtype=torch.float32, device=tokens.device)
    return [gate(tokens, prefix, _line(mean, var, norm, eps), 0, one), mean, var]


batch_tokens = triton_op(operator_name("batch_tokens"), run_batch_tokens, mutates_args={})


@triton_op(operator_name("batch_tokens_backward"), mutates_args={})
def batch_tokens_backward(
    grad: Tensor, tokens: Tensor, mean: Tensor, var: Tensor, norm: list[Tensor], eps: float, prefix: int
) -> list[Tensor]:
    """Give the gradients of tokens, weight and bias."""
    line = _line(mean, var, norm, eps)
    _, plain, _, turned, _ = gate_sums(grad, tokens, prefix, line, 0).sum(0).unbind()
    inward = through(grad, tokens, prefix, line, (plain, turned))
    return [inward, *(each.to(norm[0].dtype, copy=True) for each in (turned, plain))]


def _spread(totals: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Give mean and variance from the sums of values and squares."""
    mean = totals[0] / count
    return mean, (totals[1] / count - mean * mean).clamp(min=0)


def _line(mean: Tensor, var: Tensor, norm: list[Tensor], eps: float) -> Line:
    rate = (var + eps).rsqrt()
    scale = norm[0].float() * rate
    return Line(scale, norm[1].float() - mean * scale, mean, rate)


def _pooled(x: Tensor, lattice: tuple[int, int, int], line: Line, act: int, squeeze: list[Tensor]) -> Tensor:
    """Average the activated line over each image's patches, where a gate wants to know: (B, C)."""
    height, width, prefix = lattice
    if not squeeze:
        return torch.ones(x.shape[0], x.shape[2], dtype=torch.float32, device=x.device)
    return moments(x, prefix, line, act).sum(1)[:, 0] / (height * width)


def _factor(pooled: Tensor, squeeze: list[Tensor]) -> tuple[Tensor, ...]:
    """Give SE's factor, (B, C), and what its two layers held; ones without a gate."""
    if not squeeze:
        return (pooled,)
    reduce, bias, expand, bias2 = (each.float() for each in squeeze)
    held = F.relu(pooled @ reduce.t() + bias)
    open_ = held @ expand.t() + bias2
    return F.hardsigmoid(open_), held, open_


def _squeeze_back(
    grad: Tensor, pooled: Tensor, inner: list[Tensor], squeeze: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Give the gradients of the pooled mean and of SE's weights and biases from that of its factor."""
    if not squeeze:
        return torch.zeros_like(grad), []
    held, open_ = inner
    outer = torch.where((open_ > -3) & (open_ < 3), grad / 6, 0.0)  # (B, C)
    inside = torch.where(held > 0, outer @ squeeze[2].float(), 0.0)  # (B, R)
    found = (inside.t() @ pooled, inside.sum(0), outer.t() @ held, outer.sum(0))
    return inside @ squeeze[0].float(), [a.to(b.dtype) for a, b in zip(found, squeeze, strict=True)]


def _keep(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # nobody asks what the kept results are worth
    tokens, first, taps, second, eps, squeeze, *rest = inputs
    ctx.eps, ctx.rest = eps, rest
    ctx.save_for_backward(tokens, *output[1:], *first, taps, *second, *squeeze)


def _back(ctx, grads: list[Tensor]):
    tokens, convolved, *others = ctx.saved_tensors
    seen, first, taps, second, squeeze = others[:5], others[5:7], others[7], others[8:10], others[10:]
    inward, tap, *weights = batch_hidden_backward(
        grads[0].contiguous(), tokens, convolved, seen, first, taps, second, ctx.eps, squeeze, *ctx.rest
    )
    return inward, weights[:2], tap, weights[2:4], None, weights[4:], None, None, None, None


def _keep_tokens(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # nobody asks what the kept results are worth
    tokens, norm, *ctx.rest = inputs
    ctx.save_for_backward(tokens, *output[1:], *norm)


def _back_tokens(ctx, grads: list[Tensor]):
    tokens, mean, var, *norm = ctx.saved_tensors
    inward, *weights = batch_tokens_backward(grads[0].contiguous(), tokens, mean, var, norm, *ctx.rest)
    return inward, weights, None, None


register_autograd(operator_name("batch_tokens"), _back_tokens, setup_context=_keep_tokens)
register_autograd(operator_name("batch_hidden"), _back, setup_context=_keep)
