"""Passes over hidden tokens in Triton: sums over an image's patches, and rows made from rows.

What BatchNorm does to a channel is a line, `scale * x + shift`, so each pass draws the line anew and none stores it.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOperatorIssue=false
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from glocal.kernels.activate_triton import activate, slope

SUMMED = 256  # patches that a program sums
SUMMED_ROWS, STAGES = 16, 4  # patches at a time, and how many such loads are under way
ROWS, WIDE, LANES, WARPS = 32, 128, 64, 4  # tokens and channels that a program writes; channels that it sums


class Line(NamedTuple):
    """What a batch norm does to each channel: (x - mean) * rate, and in all scale * x + shift; float32."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    rate: Tensor


@triton.jit
def channels(vector, c, fits):
    """Load a number for each channel."""
    return tl.load(vector + c, mask=fits, other=0.0)[None, :]


@triton.jit
def _moments(
    x, scale, shift, out, count,
    ACT: tl.constexpr, LINE: tl.constexpr, PREFIX: tl.constexpr, DIM: tl.constexpr,
    SUMMED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum the patches, or their activated line, and the squares."""
    image, c = tl.program_id(2).to(tl.int64), tl.program_id(0) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    here = x + (image * (count + PREFIX) + PREFIX) * DIM + c[None, :]
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    square = total
    start = tl.program_id(1) * SUMMED
    stop = min(start + SUMMED, count)
    for first in tl.range(start, stop, ROWS, num_stages=STAGES):
        n = first + tl.arange(0, ROWS)
        mask = (n < stop)[:, None] & fits[None, :]
        value = tl.load(here + (n * DIM)[:, None], mask=mask, other=0.0).to(tl.float32)
        if LINE:
            value = activate(value * channels(scale, c, fits) + channels(shift, c, fits), ACT)
            value = tl.where(mask, value, 0.0)
        total += value
        square += value * value
    goal = out + (image * tl.num_programs(1) + tl.program_id(1)) * 2 * DIM + c
    tl.store(goal, tl.sum(total, axis=0), mask=fits)
    tl.store(goal + DIM, tl.sum(square, axis=0), mask=fits)


@triton.jit
def _gate(
    x, scale, shift, factor, out, count,
    ACT: tl.constexpr, PREFIX: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write the activated line times the image's factor; zero for prefix tokens."""
    image, c = tl.program_id(2).to(tl.int64), tl.program_id(0) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = ((image * (count + PREFIX) + n) * DIM)[:, None] + c[None, :]
    mask = (n < count + PREFIX)[:, None] & fits[None, :]
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    value = activate(value * channels(scale, c, fits) + channels(shift, c, fits), ACT)
    value = tl.where((n >= PREFIX)[:, None], value * channels(factor + image * DIM, c, fits), 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gate_sums(
    grad, x, scale, shift, mean, rate, out, count,
    ACT: tl.constexpr, PREFIX: tl.constexpr, DIM: tl.constexpr,
    SUMMED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum what the gradients of factor, pooled mean, scale and shift are made of.

    With u the line, y its activation, a the slope there and h the normalised x: grad y, grad a, a, grad a h, a h.
    """
    image, c = tl.program_id(2).to(tl.int64), tl.program_id(0) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    s, t = channels(scale, c, fits), channels(shift, c, fits)
    m, r = channels(mean, c, fits), channels(rate, c, fits)
    here = (image * (count + PREFIX) + PREFIX) * DIM + c[None, :]
    gy = tl.zeros((ROWS, LANES), dtype=tl.float32)
    ga, a, gah, ah = gy, gy, gy, gy
    start = tl.program_id(1) * SUMMED
    stop = min(start + SUMMED, count)
    for first in tl.range(start, stop, ROWS, num_stages=STAGES):
        n = first + tl.arange(0, ROWS)
        mask = (n < stop)[:, None] & fits[None, :]
        g = tl.load(grad + here + (n * DIM)[:, None], mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + here + (n * DIM)[:, None], mask=mask, other=0.0).to(tl.float32)
        u, h = value * s + t, (value - m) * r
        steep = tl.where(mask, slope(u, ACT), 0.0)
        gy += g * activate(u, ACT)
        ga += g * steep
        a += steep
        gah += g * steep * h
        ah += steep * h
    goal = out + (image * tl.num_programs(1) + tl.program_id(1)) * 5 * DIM + c
    tl.store(goal, tl.sum(gy, axis=0), mask=fits)
    tl.store(goal + DIM, tl.sum(ga, axis=0), mask=fits)
    tl.store(goal + 2 * DIM, tl.sum(a, axis=0), mask=fits)
    tl.store(goal + 3 * DIM, tl.sum(gah, axis=0), mask=fits)
    tl.store(goal + 4 * DIM, tl.sum(ah, axis=0), mask=fits)


@triton.jit
def _through(
    grad, x, scale, shift, lean, base, factor, more, out, count,
    ACT: tl.constexpr, GATE: tl.constexpr, PREFIX: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write scale * grad + lean * x + base, the gradient before a norm; zero for prefix tokens.

    With GATE, the gradient first passes the gate, which multiplies by `factor` and adds `more`, and the activation.
    """
    image, c = tl.program_id(2).to(tl.int64), tl.program_id(0) * LANES + tl.arange(0, LANES)
    fits = c < DIM
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = ((image * (count + PREFIX) + n) * DIM)[:, None] + c[None, :]
    mask = (n < count + PREFIX)[:, None] & fits[None, :]
    g = tl.load(grad + at, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    s = channels(scale, c, fits)
    if GATE:
        g = g * channels(factor + image * DIM, c, fits) + channels(more + image * DIM, c, fits)
        g *= slope(value * s + channels(shift, c, fits), ACT)
    found = s * g + channels(lean, c, fits) * value + channels(base, c, fits)
    tl.store(out + at, tl.where((n >= PREFIX)[:, None], found, 0.0).to(out.dtype.element_ty), mask=mask)


def moments(x: Tensor, prefix: int, line: Line | None = None, act: int = 0) -> Tensor:
    """Sum patches of (B, N, C), or their activated line, and the squares: (B, shares, 2, C)."""
    images, count, dim, shares, lanes = _sizes(x, prefix)
    out = torch.empty(images, shares, 2, dim, dtype=torch.float32, device=x.device)
    scale, shift = (out, out) if line is None else (line.scale, line.shift)
    wrap_triton(_moments)[(triton.cdiv(dim, lanes), shares, images)](
        x, scale, shift, out, count, ACT=act, LINE=line is not None, PREFIX=prefix, DIM=dim,
        SUMMED=SUMMED, ROWS=SUMMED_ROWS, LANES=lanes, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out


def gate(x: Tensor, prefix: int, line: Line, act: int, factor: Tensor) -> Tensor:
    """Give the activated line times a factor for each image and channel; zero for prefix tokens."""
    images, count, dim, *_ = _sizes(x, prefix)
    out, lanes = torch.empty(x.shape, dtype=x.dtype, device=x.device), _lanes(dim, WIDE)
    wrap_triton(_gate)[(triton.cdiv(dim, lanes), triton.cdiv(count + prefix, ROWS), images)](
        x, line.scale, line.shift, factor, out, count,
        ACT=act, PREFIX=prefix, DIM=dim, ROWS=ROWS, LANES=lanes, num_warps=WARPS,
    )  # fmt: skip
    return out


def gate_sums(grad: Tensor, x: Tensor, prefix: int, line: Line, act: int) -> Tensor:
    """Sum over the patches of each image the five products of `_gate_sums`: (B, 5, C)."""
    images, count, dim, shares, lanes = _sizes(x, prefix)
    out = torch.empty(images, shares, 5, dim, dtype=torch.float32, device=x.device)
    wrap_triton(_gate_sums)[(triton.cdiv(dim, lanes), shares, images)](
        grad, x, line.scale, line.shift, line.mean, line.rate, out, count,
        ACT=act, PREFIX=prefix, DIM=dim, SUMMED=SUMMED, ROWS=SUMMED_ROWS, LANES=lanes, STAGES=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out.sum(1)


def through(
    grad: Tensor,
    x: Tensor,
    prefix: int,
    line: Line,
    sums: tuple[Tensor, Tensor],
    *,
    act: int = 0,
    gate: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Give the gradient before a batch norm from the one behind it, or behind activation and gate too.

    `sums` are those of the gradient behind the norm, and of it times the normalised x; `gate` is (factor, more).
    """
    images, count, dim, *_ = _sizes(x, prefix)
    out, lanes = torch.empty(x.shape, dtype=x.dtype, device=x.device), _lanes(dim, WIDE)
    plain, turned = (each / (images * count) for each in sums)
    lean = -line.scale * turned * line.rate
    base = -line.scale * plain - lean * line.mean
    factor, more = (lean, lean) if gate is None else gate
    wrap_triton(_through)[(triton.cdiv(dim, lanes), triton.cdiv(count + prefix, ROWS), images)](
        grad, x, line.scale, line.shift, lean, base, factor, more, out, count,
        ACT=act, GATE=gate is not None, PREFIX=prefix, DIM=dim, ROWS=ROWS, LANES=lanes, num_warps=WARPS,
    )  # fmt: skip
    return out


def _sizes(x: Tensor, prefix: int) -> tuple[int, int, int, int, int]:
    """Give images, patches, channels, programs that share an image's patches, and the channels of a program."""
    images, tokens, dim = x.shape
    count = tokens - prefix
    return images, count, dim, triton.cdiv(count, SUMMED), _lanes(dim, LANES)


def _lanes(dim: int, most: int) -> int:
    return most if dim % most == 0 else min(LANES, max(16, triton.next_power_of_2(dim)))
