"""LIFE's chain of scales in Triton: tokens are convolved, projected and scattered into q, k and v, never joined."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

from glocal.kernels.depthwise_triton import convolve, tap_gradient

TILE, WARPS, STAGES = 128, 8, 2  # rows and warps of a program at large batches


@triton.jit
def _project(
    x, mix, bias, out, rows,
    X_TOKEN: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    OUT_TOKEN: tl.constexpr, OUT_PART: tl.constexpr, OUT_START: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply tokens with a scale's matrix, and write its thirds where they belong in q, k and v."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, whole = (m < rows)[:, None], column < WIDTH
    here = x + m.to(tl.int64)[:, None] * X_TOKEN
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


def run_multi_scale(
    tokens: Tensor,
    taps: list[Tensor],
    mixes: list[Tensor],
    bias: Tensor | None,
    height: int,
    width: int,
    prefix: int,
    keep: bool,
) -> list[Tensor]:
    """Give (B, N, 3 * sum of widths), then what entered each scale's projection when `keep`."""
    images, count, _ = tokens.shape
    widths = [mix.shape[0] // 3 for mix in mixes]
    out = tokens.new_empty(images, count, 3 * sum(widths))
    kept: list[Tensor] = []
    for i in range(len(mixes)):
        entered = _entering(tokens, taps[i], out, i, widths, (height, width, prefix))
        _launch(entered, mixes[i], bias if i == 0 else None, out, i, widths)
        kept.append(entered if keep and taps[i].numel() else tokens.new_empty(0))
    return [out, *kept]


multi_scale_tokens = triton_op("glocal::multi_scale", run_multi_scale, mutates_args={})


@triton_op("glocal::multi_scale_backward", mutates_args={})
def multi_scale_backward(
    grad: Tensor,
    tokens: Tensor,
    out: Tensor,
    kept: list[Tensor],
    taps: list[Tensor],
    mixes: list[Tensor],
    height: int,
    width: int,
    prefix: int,
) -> list[Tensor]:
    """Give the gradients of the tokens, the bias, each scale's taps and each scale's projection."""
    lattice = (height, width, prefix)
    images, count, _ = tokens.shape
    widths = [mix.shape[0] // 3 for mix in mixes]
    full = sum(widths)
    parts = grad.view(images, count, 3, full)
    tap_gradients, mix_gradients = [torch.empty_like(each) for each in taps], list(mixes)
    bias_gradient = mixes[0]
    arriving = parts[..., full - widths[-1] :].reshape(images * count, 3 * widths[-1])
    for i in reversed(range(len(mixes))):
        before = sum(widths[: i - 1]) if i else 0
        dim = mixes[i].shape[1]
        entered = kept[i] if taps[i].numel() else _source(tokens, out, i, widths)
        mix_gradients[i] = arriving.t() @ entered.reshape(images * count, dim)
        if i == 0:
            bias_gradient = arriving.sum(0, dtype=torch.float32).to(grad.dtype)
        inward = (arriving @ mixes[i]).view(images, count, dim)
        source, group, at = (out, (widths[i - 1], 3), (full, before)) if i else (tokens, (dim, 1), (0, 0))
        if taps[i].numel():
            flat = (group[0], 0)
            tap_gradients[i] = tap_gradient(source, inward, taps[i], lattice, group, at, flat)
            outward = torch.empty_like(inward)
            add = grad if i else None
            convolve(inward, taps[i], outward, lattice, group, flat, flat, flip=True, add=add, add_at=at)
            arriving = outward
        elif i:
            arriving = inward + parts[..., before : before + widths[i - 1]].reshape(inward.shape)
        else:
            arriving = inward
        arriving = arriving.view(images * count, dim)
    return [arriving.view(tokens.shape), bias_gradient, *tap_gradients, *mix_gradients]


def _source(tokens: Tensor, out: Tensor, i: int, widths: list[int]) -> Tensor:
    """Find what scale i starts from: the tokens, or the scale before."""
    if i == 0:
        return tokens
    start = sum(widths[: i - 1])
    return out.unflatten(-1, (3, -1))[..., start : start + widths[i - 1]].flatten(2)


def _entering(
    tokens: Tensor, weight: Tensor, out: Tensor, i: int, widths: list[int], lattice: tuple[int, int, int]
) -> Tensor:
    """Convolve what scale i starts from, in rows side by side."""
    if not weight.numel():
        return _source(tokens, out, i, widths).contiguous()
    full, dim = sum(widths), weight.shape[0]
    source, group, at = (out, (widths[i - 1], 3), (full, sum(widths[: i - 1]))) if i else (tokens, (dim, 1), (0, 0))
    entered = tokens.new_empty(*tokens.shape[:2], dim)
    convolve(source, weight, entered, lattice, group, at, (group[0], 0))
    return entered


def _launch(x: Tensor, mix: Tensor, bias: Tensor | None, out: Tensor, i: int, widths: list[int]) -> None:
    rows, full, dim = x.shape[0] * x.shape[1], sum(widths), x.shape[2]
    height = (TILE if widths[i] <= 64 else TILE // 2) if rows > 8192 else 16
    columns = min(128, max(16, triton.next_power_of_2(widths[i])))
    wrap_triton(_project)[(triton.cdiv(rows, height), triton.cdiv(widths[i], columns))](
        x, mix, mix if bias is None else bias, out, rows,
        X_TOKEN=dim, DIM=dim, WIDTH=widths[i], OUT_TOKEN=3 * full, OUT_PART=full, OUT_START=sum(widths[:i]),
        BIAS=bias is not None, ROWS=height, LANES=min(64, max(16, triton.next_power_of_2(dim))),
        COLUMNS=columns, PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=WARPS if rows > 8192 else 4, num_stages=STAGES,
    )  # fmt: skip


def _keep(ctx, inputs, output) -> None:
    tokens, taps, mixes, bias, *lattice, _ = inputs
    out, *kept = output
    ctx.scales, ctx.lattice, ctx.biased = len(taps), lattice, bias is not None
    ctx.save_for_backward(tokens, out, *kept, *taps, *mixes)


def _back(ctx, grads: list[Tensor]):
    tokens, out, *rest = ctx.saved_tensors
    s = ctx.scales
    kept, taps, mixes = rest[:s], rest[s : 2 * s], rest[2 * s :]
    first, bias, *others = multi_scale_backward(grads[0].contiguous(), tokens, out, kept, taps, mixes, *ctx.lattice)
    return first, others[:s], others[s:], bias if ctx.biased else None, None, None, None, None


register_autograd("glocal::multi_scale", _back, setup_context=_keep)
