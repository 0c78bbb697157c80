"""One scale of LIFE in one launch, for few tokens: convolved, projected, and written where it belongs in q, k and v."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

from glocal.kernels.convolve_triton import taps_first

FEW = 1024  # tokens up to which convolving anew for each part is sooner done than another launch
SMALL = 25  # taps


@triton.jit
def _convolve_project(
    x, taps, mix, bias, out, rows, count, x_batch, x_token, out_batch,
    HEIGHT: tl.constexpr, SPAN: tl.constexpr, PREFIX: tl.constexpr, SIDE: tl.constexpr,
    TAP_STEP: tl.constexpr, TAP_CHANNEL: tl.constexpr, OWN: tl.constexpr,
    SHARE: tl.constexpr, SHARE_START: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve and project in one launch, for few tokens: a launch then lasts longer than convolving again.

    Makes one of q, k and v (third grid axis). OWN: what it convolves is the scale before, which lies in `out`.
    """
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(2)
    image, n = (m // count).to(tl.int64), m % count
    real, patch, whole = m < rows, n >= PREFIX, column < WIDTH
    y, left = (n - PREFIX) // SPAN, (n - PREFIX) % SPAN
    half: tl.constexpr = SIDE // 2
    source = out if OWN else x
    token = OUT_TOKEN if OWN else x_token
    here = source + image * (out_batch if OWN else x_batch) + n * token
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in tl.static_range(0, DIM, LANES):
        c = first + tl.arange(0, LANES)
        fits = c < DIM
        channel = (c // SHARE) * OUT_PART + c % SHARE + SHARE_START if OWN else c
        mask = (real & (n < PREFIX))[:, None] & fits[None, :]  # prefix tokens pass as they are
        entered = tl.load(here[:, None] + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        # A loop in earnest: unrolled, each warp would convolve what all need for the product.
        for dy in range(-half, half + 1):
            for dx in tl.static_range(-half, half + 1):
                seen = real & patch & (y + dy >= 0) & (y + dy < HEIGHT) & (left + dx >= 0) & (left + dx < SPAN)
                near = here + (dy * SPAN + dx) * token
                value = tl.load(near[:, None] + channel[None, :], mask=seen[:, None] & fits[None, :], other=0.0)
                tap = (dy + half) * SIDE + dx + half
                weight = tl.load(taps + tap * TAP_STEP + c * TAP_CHANNEL, mask=fits, other=0.0).to(tl.float32)
                entered += value.to(tl.float32) * weight[None, :]
        block = mix + c[:, None] + (part * WIDTH + column)[None, :] * DIM
        piece = tl.load(block, mask=fits[:, None] & whole[None, :], other=0.0)
        total = tl.dot(entered.to(out.dtype.element_ty), piece, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + part * WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
    goal = out + image[:, None] * out_batch + n[:, None] * OUT_TOKEN + (part * OUT_PART + OUT_START + column)[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=real[:, None] & whole[None, :])


def convolve_project(
    tokens: Tensor | None,
    weight: Tensor,
    mix: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lattice: tuple[int, int, int],
    share: tuple[int, int],
    start: int,
) -> None:
    """Convolve and project into (B, N, 3 * part), its thirds from `start` on.

    What is convolved are tokens, or (None) the scale that lies in `out` already: `share` is its width and its start.
    """
    height, width, prefix = (int(each) for each in lattice)
    images, count, _ = out.shape
    dim, third = mix.shape[1], mix.shape[0] // 3
    taps = taps_first(weight)
    x = out.new_empty(0) if tokens is None else tokens  # never `out` twice: a traced graph would copy it
    lanes, columns = min(256, max(16, triton.next_power_of_2(dim))), min(32, max(16, triton.next_power_of_2(third)))
    wrap_triton(_convolve_project)[(triton.cdiv(images * count, 16), triton.cdiv(third, columns), 3)](
        x, taps, mix, mix if bias is None else bias, out, images * count, count,
        0 if tokens is None else x.stride(0), 0 if tokens is None else x.stride(1), out.stride(0),
        HEIGHT=height, SPAN=width, PREFIX=prefix, SIDE=weight.shape[-1],
        TAP_STEP=taps.stride(0), TAP_CHANNEL=taps.stride(1), OWN=tokens is None, SHARE=share[0], SHARE_START=share[1],
        DIM=dim, WIDTH=third, OUT_TOKEN=out.stride(1), OUT_PART=out.shape[2] // 3, OUT_START=start,
        BIAS=bias is not None, ROWS=16, LANES=lanes, COLUMNS=columns,
        PRECISION="ieee" if out.dtype == torch.float32 else "tf32", num_warps=8,
    )  # fmt: skip
