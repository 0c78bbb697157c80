"""Depth-wise convolution of tokens in Triton: no patch map is laid out, prefix tokens pass in the same launch."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

LANES, ROWS, WARPS = 64, 16, 4
_MANY = 4096  # tokens above which laying the taps out afresh costs nothing beside the work


@triton.jit
def _spread(channel, SHARE: tl.constexpr, part):
    """Find a group's channel in the row: shares of SHARE channels lie `part` apart."""
    return (channel // SHARE) * part + channel % SHARE


@triton.jit
def _depthwise(
    x,
    taps,
    add,
    out,
    tokens,
    height,
    width,
    prefix,
    x_batch,
    x_token,
    x_part,
    x_start,
    tap_step,
    tap_channel,
    add_token,
    add_part,
    add_start,
    out_token,
    out_part,
    out_start,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    SIDE: tl.constexpr,
    FLIP: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    blocks = tl.cdiv(tokens, ROWS)
    image = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    at = _spread(c, SHARE, x_part) + x_start
    row, column = (n - prefix) // width, (n - prefix) % width
    real, patch = n < tokens, (n >= prefix) & (n < tokens)
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    base = x + image * x_batch
    for tap in tl.static_range(SIDE * SIDE):
        dy = tap // SIDE - SIDE // 2
        dx = tap % SIDE - SIDE // 2
        seen = patch & (row + dy >= 0) & (row + dy < height) & (column + dx >= 0) & (column + dx < width)
        where = (n + dy * width + dx) * x_token
        value = tl.load(base + where[:, None] + at[None, :], mask=seen[:, None] & (c < DIM)[None, :], other=0.0)
        step = (SIDE * SIDE - 1 - tap) if FLIP else tap
        weight = tl.load(taps + step * tap_step + c * tap_channel, mask=c < DIM, other=0.0)
        total += value.to(tl.float32) * weight.to(tl.float32)[None, :]
    alone = (real & (n < prefix)) if SIDE > 0 else real  # SIDE 0: the group passes as it is
    same = tl.load(base + (n * x_token)[:, None] + at[None, :], mask=alone[:, None] & (c < DIM)[None, :], other=0.0)
    total += same.to(tl.float32)
    inside = real[:, None] & (c < DIM)[None, :]
    if ADD:
        beside = (image * tokens + n) * add_token
        more = _spread(c, SHARE, add_part) + add_start
        total += tl.load(add + beside[:, None] + more[None, :], mask=inside, other=0.0).to(tl.float32)
    there = (image * tokens + n) * out_token
    goal = _spread(c, SHARE, out_part) + out_start
    tl.store(out + there[:, None] + goal[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tap_gradient(
    x,
    grad,
    out,
    images,
    tokens,
    height,
    width,
    prefix,
    x_batch,
    x_token,
    x_part,
    x_start,
    grad_token,
    grad_part,
    grad_start,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Sum x * grad over a share of the images, for one row of taps (third grid axis); SIDE is at most 7."""
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    dy = tl.program_id(2) - SIDE // 2
    at, from_grad = _spread(c, SHARE, x_part) + x_start, _spread(c, SHARE, grad_part) + grad_start
    t0 = tl.zeros((ROWS, LANES), dtype=tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    blocks = tl.cdiv(tokens - prefix, ROWS)
    for block in range(tl.program_id(0), images * blocks, tl.num_programs(0)):
        image = (block // blocks).to(tl.int64)
        n = prefix + (block % blocks) * ROWS + tl.arange(0, ROWS)
        row, column = (n - prefix) // width, (n - prefix) % width
        real = n < tokens
        there = (image * tokens + n) * grad_token
        g = tl.load(grad + there[:, None] + from_grad[None, :], mask=real[:, None] & (c < DIM)[None, :], other=0.0)
        g = g.to(tl.float32)
        near = real & (row + dy >= 0) & (row + dy < height)
        for step in tl.static_range(SIDE):
            dx = step - SIDE // 2
            seen = near & (column + dx >= 0) & (column + dx < width)
            where = x + image * x_batch + (n + dy * width + dx) * x_token
            value = tl.load(where[:, None] + at[None, :], mask=seen[:, None] & (c < DIM)[None, :], other=0.0)
            part = value.to(tl.float32) * g
            if step == 0:
                t0 += part
            elif step == 1:
                t1 += part
            elif step == 2:
                t2 += part
            elif step == 3:
                t3 += part
            elif step == 4:
                t4 += part
            elif step == 5:
                t5 += part
            else:
                t6 += part
    goal = out + (tl.program_id(0) * SIDE * SIDE + tl.program_id(2) * SIDE) * DIM + c
    tl.store(goal, tl.sum(t0, axis=0), mask=c < DIM)
    if SIDE > 1:
        tl.store(goal + DIM, tl.sum(t1, axis=0), mask=c < DIM)
        tl.store(goal + 2 * DIM, tl.sum(t2, axis=0), mask=c < DIM)
    if SIDE > 3:
        tl.store(goal + 3 * DIM, tl.sum(t3, axis=0), mask=c < DIM)
        tl.store(goal + 4 * DIM, tl.sum(t4, axis=0), mask=c < DIM)
    if SIDE > 5:
        tl.store(goal + 5 * DIM, tl.sum(t5, axis=0), mask=c < DIM)
        tl.store(goal + 6 * DIM, tl.sum(t6, axis=0), mask=c < DIM)


def run_depthwise(
    tokens: Tensor, weights: list[Tensor], widths: list[int], parts: int, height: int, width: int, prefix: int
) -> Tensor:
    """Convolve groups of channels, each with its own kernel; see `glocal.kernels.depthwise`."""
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    start = 0
    for weight, share in zip(weights, widths, strict=True):
        part = sum(widths)
        convolve(tokens, weight, out, (height, width, prefix), (share, parts), (part, start), (part, start))
        start += share
    return out


depthwise_tokens = triton_op("glocal::depthwise", run_depthwise, mutates_args={})


@triton_op("glocal::depthwise_backward", mutates_args={})
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
    gradients, start = [out], 0
    for weight, share in zip(weights, widths, strict=True):
        at = (part, start)
        convolve(grad, weight, out, lattice, (share, parts), at, at, flip=True)
        gradients.append(tap_gradient(tokens, grad, weight, lattice, (share, parts), at, at))
        start += share
    return gradients


def convolve(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    lattice: tuple[int, int, int],
    group: tuple[int, int],
    x_at: tuple[int, int],
    out_at: tuple[int, int],
    *,
    flip: bool = False,
    add: Tensor | None = None,
    add_at: tuple[int, int] = (0, 0),
) -> None:
    """Write one group's convolution into `out`, plus `add` where given.

    `group` is (channels in a share, shares); `*_at` is (distance between shares, first channel) in a row of tokens.
    """
    images, tokens, _ = x.shape
    height, width, prefix = lattice
    share, parts = group
    side = weight.shape[-1] if weight.numel() else 0
    taps = _taps(weight, images * tokens)
    rows = ROWS
    beside = x if add is None else add  # never `out` twice: a traced graph would copy it
    wrap_triton(_depthwise)[(images * triton.cdiv(tokens, rows), triton.cdiv(share * parts, LANES))](
        x, taps, beside, out, tokens, height, width, prefix,
        x.stride(0), x.stride(1), *x_at, taps.stride(0), taps.stride(1),
        beside.stride(1), *add_at, out.stride(1), *out_at,
        SHARE=share, DIM=share * parts, SIDE=side, FLIP=flip, ADD=add is not None, ROWS=rows, LANES=LANES,
        num_warps=WARPS,
    )  # fmt: skip


def tap_gradient(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    lattice: tuple[int, int, int],
    group: tuple[int, int],
    x_at: tuple[int, int],
    grad_at: tuple[int, int],
) -> Tensor:
    """Give the gradient of one group's weight."""
    images, tokens, _ = x.shape
    height, width, prefix = lattice
    share, parts = group
    if not weight.numel():
        return torch.empty_like(weight)
    side, dim, rows = weight.shape[-1], share * parts, 32
    blocks = images * triton.cdiv(tokens - prefix, rows)
    lots = min(blocks, triton.cdiv(512, side * triton.cdiv(dim, LANES)))
    partial = torch.empty(lots, side * side, dim, dtype=torch.float32, device=x.device)
    wrap_triton(_tap_gradient)[(lots, triton.cdiv(dim, LANES), side)](
        x, grad, partial, images, tokens, height, width, prefix,
        x.stride(0), x.stride(1), *x_at, grad.stride(1), *grad_at,
        SHARE=share, DIM=dim, SIDE=side, ROWS=rows, LANES=LANES, num_warps=4,
    )  # fmt: skip
    return partial.sum(0).t().reshape(weight.shape).to(weight.dtype)


def _taps(weight: Tensor, tokens: int) -> Tensor:
    """See the weight as (taps, channels); neighbouring channels lie side by side when that pays."""
    taps = weight.flatten(1).t() if weight.numel() else weight.new_empty(1, 1)
    return taps.contiguous() if tokens > _MANY else taps


def _keep(ctx, inputs, output) -> None:
    tokens, weights, *rest = inputs
    ctx.save_for_backward(tokens, *weights)
    ctx.rest = rest


def _back(ctx, grad: Tensor):
    tokens, *weights = ctx.saved_tensors
    first, *others = depthwise_backward(grad.contiguous(), tokens, weights, *ctx.rest)
    return first, others, None, None, None, None, None


register_autograd("glocal::depthwise", _back, setup_context=_keep)
