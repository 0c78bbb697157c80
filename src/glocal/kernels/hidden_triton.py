"""LocalFFN's hidden map at inference in Triton: activation, depth-wise convolution, bias, activation, pooling."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from glocal.kernels.depthwise_triton import _MANY, LANES, ROWS, WARPS, _taps


@triton.jit
def _activate(x, KIND: tl.constexpr):
    """Apply hard-swish (1), ReLU6 (2) or GELU (3)."""
    if KIND == 1:
        x = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)
    elif KIND == 2:
        x = tl.minimum(tl.maximum(x, 0.0), 6.0)
    elif KIND == 3:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return x


@triton.jit
def _hidden(
    x, taps, bias, out, sums, x_batch,
    TOKENS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, X_TOKEN: tl.constexpr,
    TAP_STEP: tl.constexpr, TAP_CHANNEL: tl.constexpr, DIM: tl.constexpr, SIDE: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, POOL: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (TOKENS + ROWS - 1) // ROWS
    image = (tl.program_id(0) // blocks).to(tl.int64)
    n = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    row, column = n // WIDTH, n % WIDTH
    total = tl.zeros((ROWS, LANES), dtype=tl.float32) + tl.load(bias + c, mask=fits, other=0.0).to(tl.float32)[None, :]
    here = x + image * x_batch + (n * X_TOKEN)[:, None] + c[None, :]
    for tap in tl.static_range(SIDE * SIDE):
        dy = tap // SIDE - SIDE // 2
        dx = tap % SIDE - SIDE // 2
        seen = (n < TOKENS) & (row + dy >= 0) & (row + dy < HEIGHT) & (column + dx >= 0) & (column + dx < WIDTH)
        value = tl.load(here + (dy * WIDTH + dx) * X_TOKEN, mask=seen[:, None] & fits[None, :], other=0.0)
        weight = tl.load(taps + tap * TAP_STEP + c * TAP_CHANNEL, mask=fits, other=0.0).to(tl.float32)
        # Outside the map there is zero, and every activation leaves zero as it is.
        total += _activate(value.to(tl.float32), BEFORE) * weight[None, :]
    total = _activate(total, AFTER)
    inside = (n < TOKENS)[:, None] & fits[None, :]
    tl.store(out + ((image * TOKENS + n) * DIM)[:, None] + c[None, :], total.to(out.dtype.element_ty), mask=inside)
    if POOL:
        goal = sums + tl.program_id(0).to(tl.int64) * DIM + c
        tl.store(goal, tl.sum(tl.where(inside, total, 0.0), axis=0), mask=fits)


def run_hidden(
    x: Tensor, weight: Tensor, bias: Tensor, height: int, width: int, before: int, after: int, pool: bool
) -> list[Tensor]:
    """Give the hidden tokens and, when `pool`, their mean over each image (B, C); see `glocal.kernels.hidden`."""
    images, tokens, dim = x.shape
    rows = ROWS if images * tokens > _MANY else 16
    blocks = triton.cdiv(tokens, rows)
    taps = _taps(weight, images * tokens)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = torch.empty(images, blocks, dim if pool else 0, dtype=torch.float32, device=x.device)
    wrap_triton(_hidden)[(images * blocks, triton.cdiv(dim, LANES))](
        x, taps, bias, out, sums, x.stride(0),
        TOKENS=tokens, HEIGHT=height, WIDTH=width, X_TOKEN=x.stride(1), TAP_STEP=taps.stride(0),
        TAP_CHANNEL=taps.stride(1), DIM=dim, SIDE=weight.shape[-1], BEFORE=before, AFTER=after, POOL=pool, ROWS=rows,
        LANES=LANES, num_warps=WARPS,
    )  # fmt: skip
    return [out, (sums.sum(1) / tokens).to(x.dtype)]


hidden_tokens = triton_op("glocal::hidden", run_hidden, mutates_args={})
