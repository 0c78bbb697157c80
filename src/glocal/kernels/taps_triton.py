"""The gradient of a depth-wise convolution's taps in Triton, summed over tokens where they lie."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false
# ruff: noqa: RUF005  a Triton tuple grows by addition alone
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from glocal.kernels.activate_triton import activate
from glocal.kernels.convolve_triton import Place, load_beside, load_column, on_map, spread, tiles
from glocal.kernels.rows_triton import Line, channels

PROGRAMS = 528  # as many as run at once on a large GPU; each sums a share of the lines
AHEAD = 4  # columns asked for before they are used


@triton.jit
def load_pair(
    here, there, y, left, real, fits, inside, AT: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    X_TOKEN: tl.constexpr, GRAD_TOKEN: tl.constexpr, SIDE: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Ask for a column of gradients, and for the inputs around each line as far right as that column first needs."""
    half: tl.constexpr = SIDE // 2
    grads, inputs = (), ()
    if AT < STRIP:
        grads = load_beside(there, left, inside, AT, WIDTH, GRAD_TOKEN, STRIP)
    if STRIP < WIDTH or (half <= AT and AT - half < WIDTH):
        inputs = load_column(here, y, left, real, fits, AT - half, HEIGHT, WIDTH, X_TOKEN, SIDE, STRIP)
    return grads, inputs


@triton.jit
def _tap_gradient(
    x, grad, out, scale, shift, lines, x_batch, grad_batch,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PREFIX: tl.constexpr,
    X_TOKEN: tl.constexpr, X_PART: tl.constexpr, X_START: tl.constexpr,
    GRAD_TOKEN: tl.constexpr, GRAD_PART: tl.constexpr, GRAD_START: tl.constexpr,
    SHARE: tl.constexpr, DIM: tl.constexpr, SIDE: tl.constexpr, LINE: tl.constexpr, BEFORE: tl.constexpr,
    STRIP: tl.constexpr, LINES: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Walk strips of columns: an input column meets the SIDE gradients that it helped to make, leftmost first."""
    c = tl.program_id(0) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    half: tl.constexpr = SIDE // 2
    strips: tl.constexpr = (WIDTH + STRIP - 1) // STRIP
    zero = tl.zeros((LINES, LANES), dtype=tl.float32)
    if LINE:
        s, t = channels(scale, c, fits), channels(shift, c, fits)
    total = ()
    for _ in tl.static_range(SIDE * SIDE):
        total = total + (zero,)
    for block in range(tl.program_id(1), tl.cdiv(lines, LINES) * strips, tl.num_programs(1)):
        line = (block // strips) * LINES + tl.arange(0, LINES)
        left = (block % strips) * STRIP + line * 0  # a block, for masks
        image, y = (line // HEIGHT).to(tl.int64), line % HEIGHT
        real = line < lines
        first = PREFIX + y * WIDTH + left
        here = x + (image * x_batch + first * X_TOKEN)[:, None] + spread(c, SHARE, X_PART, X_START)[None, :]
        there = grad + (image * grad_batch + first * GRAD_TOKEN)[:, None]
        there += spread(c, SHARE, GRAD_PART, GRAD_START)[None, :]
        window = ()
        for _ in tl.static_range(SIDE):
            window = window + (zero,)
        inside = real[:, None] & fits[None, :]
        columns = ()
        for j in tl.static_range(AHEAD):
            columns = columns + (
                load_pair(here, there, y, left, real, fits, inside, j, HEIGHT, WIDTH, X_TOKEN, GRAD_TOKEN, SIDE, STRIP),
            )
        for j in tl.static_range(STRIP + SIDE - 1):
            if j + AHEAD < STRIP + SIDE - 1:
                columns = columns + (
                    load_pair(
                        here, there, y, left, real, fits, inside, j + AHEAD,
                        HEIGHT, WIDTH, X_TOKEN, GRAD_TOKEN, SIDE, STRIP,
                    ),
                )  # fmt: skip
            arriving = zero
            if j < STRIP:
                arriving = columns[j][0].to(tl.float32)
            later = ()
            for step in tl.static_range(1, SIDE):
                later = later + (window[step],)
            window = later + (arriving,)
            if STRIP < WIDTH or (j >= half and j - half < WIDTH):
                fuller = ()
                for dy in tl.static_range(SIDE):
                    value = columns[j][1][dy].to(tl.float32)
                    if LINE:
                        seen = on_map(y, left, real, dy - half, j - half, HEIGHT, WIDTH, STRIP)
                        value = tl.where(seen[:, None] & fits[None, :], activate(value * s + t, BEFORE), 0.0)
                    # Tap t links input column j to output column j - t, whose gradient came t columns ago.
                    for step in tl.static_range(SIDE):
                        fuller = fuller + (total[dy * SIDE + step] + value * window[SIDE - 1 - step],)
                total = fuller
    for tap in tl.static_range(SIDE * SIDE):
        goal = out + (tl.program_id(1) * SIDE * SIDE + tap) * DIM + c
        tl.store(goal, tl.sum(total[tap], axis=0), mask=fits)


def tap_gradient(
    x: Place,
    grad: Place,
    weight: Tensor,
    lattice: tuple[int, int, int],
    group: tuple[int, int],
    *,
    line: Line | None = None,
    before: int = 0,
) -> Tensor:
    """Give the gradient of one group's weight; `group` is (channels in a share, shares).

    A `line` and the activation after it are drawn on x first.
    """
    height, width, prefix = (int(each) for each in lattice)
    share, parts = group
    side, dim, images = weight.shape[-1], share * parts, x.rows.shape[0]
    strip, lines, lanes, warps = tiles(images * height, width, dim, side)
    blocks = triton.cdiv(images * height, lines) * triton.cdiv(width, strip)
    lots = min(blocks, triton.cdiv(PROGRAMS, triton.cdiv(dim, lanes)))
    partial = torch.empty(lots, side * side, dim, dtype=torch.float32, device=x.rows.device)
    x_token, x_part, x_start = x.strides()
    grad_token, grad_part, grad_start = grad.strides()
    scale, shift = (partial, partial) if line is None else (line.scale, line.shift)
    wrap_triton(_tap_gradient)[(triton.cdiv(dim, lanes), lots)](
        x.rows, grad.rows, partial, scale, shift, images * height, x.rows.stride(0), grad.rows.stride(0),
        HEIGHT=height, WIDTH=width, PREFIX=prefix, X_TOKEN=x_token, X_PART=x_part, X_START=x_start,
        GRAD_TOKEN=grad_token, GRAD_PART=grad_part, GRAD_START=grad_start,
        SHARE=share, DIM=dim, SIDE=side, LINE=line is not None, BEFORE=before,
        STRIP=strip, LINES=lines, LANES=lanes, AHEAD=AHEAD, num_warps=warps,
    )  # fmt: skip
    return partial.sum(0).t().reshape(weight.shape).to(weight.dtype)
