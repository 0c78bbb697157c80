"""Tokens times a scale's matrix in Triton, its thirds written where they belong in q, k and v."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

MANY = 8192  # rows above which one program makes q, k and v, and reads its tokens once
TILE, WARPS, STAGES = 64, 4, 2


@triton.jit
def _project(
    x, mix, bias, out, rows, x_token,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, whole = (m < rows)[:, None], column < WIDTH
    here = x + m.to(tl.int64)[:, None] * x_token
    q = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    k, v = q, q
    for first in range(0, DIM, LANES):
        c = first + tl.arange(0, LANES)
        entered = tl.load(here + c[None, :], mask=real & (c < DIM)[None, :], other=0.0)
        block = mix + c[:, None] + column[None, :] * DIM
        full = (c < DIM)[:, None] & whole[None, :]
        q = tl.dot(entered, tl.load(block, mask=full, other=0.0), q, input_precision=PRECISION)
        k = tl.dot(entered, tl.load(block + WIDTH * DIM, mask=full, other=0.0), k, input_precision=PRECISION)
        v = tl.dot(entered, tl.load(block + 2 * WIDTH * DIM, mask=full, other=0.0), v, input_precision=PRECISION)
    if BIAS:
        q += tl.load(bias + column, mask=whole, other=0.0).to(tl.float32)[None, :]
        k += tl.load(bias + WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
        v += tl.load(bias + 2 * WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
    goal = out + m.to(tl.int64)[:, None] * OUT_TOKEN + (OUT_START + column)[None, :]
    inside = real & whole[None, :]
    tl.store(goal, q.to(out.dtype.element_ty), mask=inside)
    tl.store(goal + OUT_PART, k.to(out.dtype.element_ty), mask=inside)
    tl.store(goal + 2 * OUT_PART, v.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _project_part(
    x, mix, bias, out, rows, x_token,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Make one of q, k and v (third grid axis): more programs, for few tokens."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(2)
    real, whole = (m < rows)[:, None], column < WIDTH
    here = x + m.to(tl.int64)[:, None] * x_token
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in tl.static_range(0, DIM, LANES):
        c = first + tl.arange(0, LANES)
        entered = tl.load(here + c[None, :], mask=real & (c < DIM)[None, :], other=0.0)
        block = mix + c[:, None] + (part * WIDTH + column)[None, :] * DIM
        piece = tl.load(block, mask=(c < DIM)[:, None] & whole[None, :], other=0.0)
        total = tl.dot(entered, piece, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + part * WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
    goal = out + m.to(tl.int64)[:, None] * OUT_TOKEN + (part * OUT_PART + OUT_START + column)[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=real & whole[None, :])


def project(rows: Tensor, mix: Tensor, bias: Tensor | None, out: Tensor, part: int, start: int) -> None:
    """Write a (rows, channels) matrix times mix.t() into (rows, 3 * part): its thirds `part` apart from `start` on."""
    count, dim = rows.shape
    width = mix.shape[0] // 3
    many = count > MANY
    lanes = min(64, max(16, triton.next_power_of_2(dim)))
    columns = min(64 if many else 32, max(16, triton.next_power_of_2(width)))
    tile = TILE if many else 16
    grid = (triton.cdiv(count, tile), triton.cdiv(width, columns))
    wrap_triton(_project if many else _project_part)[grid if many else (*grid, 3)](
        rows, mix, mix if bias is None else bias, out, count, rows.stride(0),
        DIM=dim, WIDTH=width, OUT_TOKEN=out.stride(0), OUT_PART=part, OUT_START=start, BIAS=bias is not None,
        ROWS=tile, LANES=lanes, COLUMNS=columns, PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        num_warps=WARPS if many else 4, num_stages=STAGES if many else 1,
    )  # fmt: skip
