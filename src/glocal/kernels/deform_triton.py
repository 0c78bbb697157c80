"""Taps gathered at moved places in Triton, channels last: one row of taps, ready for a matrix product."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

from glocal.kernels.naming import operator_name

LANES = 64


@triton.jit
def _place(offset, r, count, out_height, out_width, KERNEL: tl.constexpr, stride, padding):
    """Find the image, the moved place and the offset's address of sample r = ((b * H' + i) * W' + j) * taps + tap."""
    taps: tl.constexpr = KERNEL * KERNEL
    tap, spot = r % taps, r // taps
    j, i = spot % out_width, (spot // out_width) % out_height
    image = (spot // (out_width * out_height)).to(tl.int64)
    plane = out_height * out_width
    at = (image * 2 * taps + 2 * tap) * plane + i * out_width + j
    real = r < count
    y = tl.load(offset + at, mask=real, other=0.0).to(tl.float32) + (i * stride - padding + tap // KERNEL)
    x = tl.load(offset + at + plane, mask=real, other=0.0).to(tl.float32) + (j * stride - padding + tap % KERNEL)
    return image, y, x, at


@triton.jit
def _gather(
    source, offset, out, count, height, width, out_height, out_width, stride, padding,
    s_batch, s_row, s_column,
    DIM: tl.constexpr, KERNEL: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    image, y, x, _ = _place(offset, r, count, out_height, out_width, KERNEL, stride, padding)
    top, left = tl.floor(y), tl.floor(x)
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    for corner in tl.static_range(4):
        cy, cx = top + corner // 2, left + corner % 2
        share = (1.0 - tl.abs(y - cy)) * (1.0 - tl.abs(x - cx))
        seen = (r < count) & (cy >= 0) & (cy < height) & (cx >= 0) & (cx < width)
        where = source + image * s_batch + cy.to(tl.int32) * s_row + cx.to(tl.int32) * s_column
        value = tl.load(where[:, None] + c[None, :], mask=seen[:, None] & (c < DIM)[None, :], other=0.0)
        total += value.to(tl.float32) * share[:, None]
    goal = out + r.to(tl.int64)[:, None] * DIM + c[None, :]
    tl.store(goal, total.to(out.dtype.element_ty), mask=(r < count)[:, None] & (c < DIM)[None, :])


@triton.jit
def _scatter(
    grad, source, offset, out, out_offset, count, height, width, out_height, out_width, stride, padding,
    s_batch, s_row, s_column,
    DIM: tl.constexpr, KERNEL: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Add each sample's gradient to its four corners, and sum the gradient of its place over the channels."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    image, y, x, at = _place(offset, r, count, out_height, out_width, KERNEL, stride, padding)
    top, left = tl.floor(y), tl.floor(x)
    real = r < count
    grad_y = tl.zeros((ROWS,), dtype=tl.float32)
    grad_x = tl.zeros((ROWS,), dtype=tl.float32)
    for first in range(0, DIM, LANES):
        c = first + tl.arange(0, LANES)
        fits = c < DIM
        mask = real[:, None] & fits[None, :]
        g = tl.load(grad + r.to(tl.int64)[:, None] * DIM + c[None, :], mask=mask, other=0.0).to(tl.float32)
        for corner in tl.static_range(4):
            cy, cx = top + corner // 2, left + corner % 2
            near_y, near_x = 1.0 - tl.abs(y - cy), 1.0 - tl.abs(x - cx)
            seen = real & (cy >= 0) & (cy < height) & (cx >= 0) & (cx < width)
            row, column = cy.to(tl.int32), cx.to(tl.int32)
            where = source + image * s_batch + row * s_row + column * s_column
            inside = seen[:, None] & fits[None, :]
            value = tl.load(where[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)
            along = tl.sum(value * g, axis=1)
            grad_y += along * near_x * (2 * (corner // 2) - 1)
            grad_x += along * near_y * (2 * (corner % 2) - 1)
            goal = out + ((image * height + row) * width + column) * DIM
            # A tap that did not move has no share in three of its corners.
            touched = inside & (near_y * near_x != 0)[:, None]
            tl.atomic_add(goal[:, None] + c[None, :], g * (near_y * near_x)[:, None], mask=touched, sem="relaxed")
    plane = out_height * out_width
    tl.store(out_offset + at, grad_y.to(out_offset.dtype.element_ty), mask=real)
    tl.store(out_offset + at + plane, grad_x.to(out_offset.dtype.element_ty), mask=real)


def run_gather_taps(patches: Tensor, offset: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Read (B, H, W, C) at moved taps: (B, H', W', taps, C)."""
    images, height, width, dim = patches.shape
    _, two_taps, out_height, out_width = offset.shape
    out = patches.new_empty(images, out_height, out_width, two_taps // 2, dim)
    count, rows = images * out_height * out_width * (two_taps // 2), 16
    wrap_triton(_gather)[(triton.cdiv(count, rows), triton.cdiv(dim, LANES))](
        patches, offset, out, count, height, width, out_height, out_width, stride, padding,
        patches.stride(0), patches.stride(1), patches.stride(2),
        DIM=dim, KERNEL=kernel, ROWS=rows, LANES=LANES, num_warps=4,
    )  # fmt: skip
    return out


gather_taps = triton_op(operator_name("gather_taps"), run_gather_taps, mutates_args={})


@triton_op(operator_name("gather_taps_backward"), mutates_args={})
def gather_taps_backward(
    grad: Tensor, patches: Tensor, offset: Tensor, kernel: int, stride: int, padding: int
) -> list[Tensor]:
    """Give the gradients of the patches and of the offsets."""
    images, height, width, dim = patches.shape
    _, two_taps, out_height, out_width = offset.shape
    spread = torch.zeros(patches.shape, dtype=torch.float32, device=patches.device)
    moved = torch.empty(offset.shape, dtype=offset.dtype, device=offset.device)
    count, rows = images * out_height * out_width * (two_taps // 2), 16
    wrap_triton(_scatter)[(triton.cdiv(count, rows),)](
        grad, patches, offset, spread, moved, count, height, width, out_height, out_width, stride, padding,
        patches.stride(0), patches.stride(1), patches.stride(2),
        DIM=dim, KERNEL=kernel, ROWS=rows, LANES=LANES, num_warps=4,
    )  # fmt: skip
    return [spread.to(patches.dtype), moved]


def _keep(ctx, inputs, output) -> None:
    patches, offset, *rest = inputs
    ctx.save_for_backward(patches, offset)
    ctx.rest = rest


def _back(ctx, grad: Tensor):
    patches, offset = ctx.saved_tensors
    return *gather_taps_backward(grad.contiguous(), patches, offset, *ctx.rest), None, None, None


register_autograd(operator_name("gather_taps"), _back, setup_context=_keep)
