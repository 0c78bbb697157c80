"""Depth-wise convolution of tokens in Triton: no patch map is laid out, prefix tokens pass in the same launch."""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

LANES, ROWS, WARPS = 64, 64, 4
_MANY = 4096  # tokens above which laying the taps out afresh costs nothing beside the work


@triton.jit
def _spread(channel, SHARE: tl.constexpr, part):
    """Find a group's channel in the row: shares of SHARE channels lie `part` apart."""
    return (channel // SHARE) * part + channel % SHARE


@triton.jit
def _depthwise(
    x, taps, add, out, x_batch,
    TOKENS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PREFIX: tl.constexpr,
    X_TOKEN: tl.constexpr, X_PART: tl.constexpr, X_START: tl.constexpr,
    TAP_STEP: tl.constexpr, TAP_CHANNEL: tl.constexpr,
    ADD_TOKEN: tl.constexpr, ADD_PART: tl.constexpr, ADD_START: tl.constexpr,
    OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    SHARE: tl.constexpr, DIM: tl.constexpr, SIDE: tl.constexpr, FLIP: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sizes and strides are constants, so that a tap's address is a fixed distance from its token's."""
    blocks: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    image = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    fits = (c < DIM)[None, :]
    row, column = (n - PREFIX) // WIDTH, (n - PREFIX) % WIDTH
    real, patch = n < TOKENS, (n >= PREFIX) & (n < TOKENS)
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    here = x + image * x_batch + (n * X_TOKEN)[:, None] + (_spread(c, SHARE, X_PART) + X_START)[None, :]
    for tap in tl.static_range(SIDE * SIDE):
        dy = tap // SIDE - SIDE // 2
        dx = tap % SIDE - SIDE // 2
        seen = patch & (row + dy >= 0) & (row + dy < HEIGHT) & (column + dx >= 0) & (column + dx < WIDTH)
        value = tl.load(here + (dy * WIDTH + dx) * X_TOKEN, mask=seen[:, None] & fits, other=0.0)
        step = (SIDE * SIDE - 1 - tap) if FLIP else tap
        weight = tl.load(taps + step * TAP_STEP + c * TAP_CHANNEL, mask=c < DIM, other=0.0)
        total += value.to(tl.float32) * weight.to(tl.float32)[None, :]
    if SIDE == 0:  # the group passes as it is
        total += tl.load(here, mask=real[:, None] & fits, other=0.0).to(tl.float32)
    elif PREFIX > 0:
        total += tl.load(here, mask=(real & (n < PREFIX))[:, None] & fits, other=0.0).to(tl.float32)
    inside = real[:, None] & fits
    token = image * TOKENS + n
    if ADD:
        more = add + (token * ADD_TOKEN)[:, None] + (_spread(c, SHARE, ADD_PART) + ADD_START)[None, :]
        total += tl.load(more, mask=inside, other=0.0).to(tl.float32)
    goal = out + (token * OUT_TOKEN)[:, None] + (_spread(c, SHARE, OUT_PART) + OUT_START)[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tap_gradient(
    x, grad, out, images, x_batch,
    TOKENS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PREFIX: tl.constexpr,
    X_TOKEN: tl.constexpr, X_PART: tl.constexpr, X_START: tl.constexpr,
    GRAD_TOKEN: tl.constexpr, GRAD_PART: tl.constexpr, GRAD_START: tl.constexpr,
    SHARE: tl.constexpr, DIM: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum x * grad over a share of the images, for one row of taps (third grid axis); SIDE is at most 7."""
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    fits = (c < DIM)[None, :]
    dy = tl.program_id(2) - SIDE // 2
    at, from_grad = _spread(c, SHARE, X_PART) + X_START, _spread(c, SHARE, GRAD_PART) + GRAD_START
    t0 = tl.zeros((ROWS, LANES), dtype=tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    blocks: tl.constexpr = (TOKENS - PREFIX + ROWS - 1) // ROWS
    for block in range(tl.program_id(0), images * blocks, tl.num_programs(0)):
        n = PREFIX + (block % blocks) * ROWS + tl.arange(0, ROWS)
        image = (n * 0 + block // blocks).to(tl.int64)
        row, column = (n - PREFIX) // WIDTH, (n - PREFIX) % WIDTH
        real = n < TOKENS
        there = grad + ((image * TOKENS + n) * GRAD_TOKEN)[:, None] + from_grad[None, :]
        g = tl.load(there, mask=real[:, None] & fits, other=0.0).to(tl.float32)
        near = real & (row + dy >= 0) & (row + dy < HEIGHT)
        here = x + (image * x_batch + (n + dy * WIDTH) * X_TOKEN)[:, None] + at[None, :]
        for step in tl.static_range(SIDE):
            dx = step - SIDE // 2
            seen = near & (column + dx >= 0) & (column + dx < WIDTH)
            value = tl.load(here + dx * X_TOKEN, mask=seen[:, None] & fits, other=0.0)
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
    beside = x if add is None else add  # never `out` twice: a traced graph would copy it
    rows = ROWS if images * tokens > _MANY else 16
    wrap_triton(_depthwise)[(images * triton.cdiv(tokens, rows), triton.cdiv(share * parts, LANES))](
        x, taps, beside, out, x.stride(0),
        TOKENS=tokens, HEIGHT=height, WIDTH=width, PREFIX=prefix,
        X_TOKEN=x.stride(1), X_PART=x_at[0], X_START=x_at[1], TAP_STEP=taps.stride(0), TAP_CHANNEL=taps.stride(1),
        ADD_TOKEN=beside.stride(1), ADD_PART=add_at[0], ADD_START=add_at[1],
        OUT_TOKEN=out.stride(1), OUT_PART=out_at[0], OUT_START=out_at[1],
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
    lots = triton.cdiv(512, side * triton.cdiv(dim, LANES))
    partial = torch.empty(lots, side * side, dim, dtype=torch.float32, device=x.device)
    wrap_triton(_tap_gradient)[(lots, triton.cdiv(dim, LANES), side)](
        x, grad, partial, images, x.stride(0),
        TOKENS=tokens, HEIGHT=height, WIDTH=width, PREFIX=prefix,
        X_TOKEN=x.stride(1), X_PART=x_at[0], X_START=x_at[1],
        GRAD_TOKEN=grad.stride(1), GRAD_PART=grad_at[0], GRAD_START=grad_at[1],
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
