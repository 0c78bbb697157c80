"""Tokens times a scale's matrix in Triton, its thirds written where they belong in q, k and v."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false
# ruff: noqa: RUF005  a Triton tuple grows by addition alone
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

MANY = 8192  # rows above which one program makes q, k and v, and reads its tokens once
TILE, WARPS, STAGES = 64, 8, 2
HELD, HELD_TILE, HELD_WARPS, HELD_AHEAD = 80 * 1024, 64, 4, 3  # a matrix of so many bytes is held in shared memory
PROGRAMS = 132  # multiprocessors of a large GPU


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
def _project_held(
    x, mix, bias, out, rows, x_token,
    DIM: tl.constexpr, WIDTH: tl.constexpr, OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr,
    BIAS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """Hold the whole matrix in shared memory and go from tile to tile of rows: it is read once for each multiprocessor.

    The compiler lifts the matrix's pieces out of the loop, and asks for tiles before they are used.
    """
    column = tl.arange(0, COLUMNS)
    whole = column < WIDTH
    pieces = ()
    for first in tl.static_range(0, DIM, LANES):
        c = first + tl.arange(0, LANES)
        block = mix + c[:, None] + column[None, :] * DIM
        full = (c < DIM)[:, None] & whole[None, :]
        for part in tl.static_range(3):
            pieces = pieces + (tl.load(block + part * WIDTH * DIM, mask=full, other=0.0),)
    shifts = ()
    for part in tl.static_range(3 if BIAS else 0):
        shifts = shifts + (tl.load(bias + part * WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :],)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=AHEAD):
        m = tile * ROWS + tl.arange(0, ROWS)
        real = (m < rows)[:, None]
        here = x + m.to(tl.int64)[:, None] * x_token
        q = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        k, v = q, q
        for step in tl.static_range((DIM + LANES - 1) // LANES):
            c = step * LANES + tl.arange(0, LANES)
            entered = tl.load(here + c[None, :], mask=real & (c < DIM)[None, :], other=0.0)
            q = tl.dot(entered, pieces[3 * step], q, input_precision=PRECISION)
            k = tl.dot(entered, pieces[3 * step + 1], k, input_precision=PRECISION)
            v = tl.dot(entered, pieces[3 * step + 2], v, input_precision=PRECISION)
        if BIAS:
            q, k, v = q + shifts[0], k + shifts[1], v + shifts[2]
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
    held = many and width <= columns and mix.numel() * mix.element_size() <= HELD
    kernel, tile, lots, named = _project_part, 16, (triton.cdiv(width, columns), 3), {"num_warps": 4, "num_stages": 1}
    if held:
        kernel, tile, lots = _project_held, HELD_TILE, ()
        named = {"AHEAD": HELD_AHEAD, "num_warps": HELD_WARPS}
    elif many:
        kernel, tile, lots = _project, TILE, (triton.cdiv(width, columns),)
        named = {"num_warps": WARPS, "num_stages": STAGES}
    tiles = triton.cdiv(count, tile)
    wrap_triton(kernel)[(min(tiles, PROGRAMS) if held else tiles, *lots)](
        rows, mix, mix if bias is None else bias, out, count, rows.stride(0),
        DIM=dim, WIDTH=width, OUT_TOKEN=out.stride(0), OUT_PART=part, OUT_START=start, BIAS=bias is not None,
        ROWS=tile, LANES=lanes, COLUMNS=columns, PRECISION="ieee" if rows.dtype == torch.float32 else "tf32", **named,
    )  # fmt: skip
