"""LIFE's chain of scales in Triton: convolve, project and scatter into q, k and v in one launch per scale."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

from glocal.kernels.depthwise_triton import _taps, convolve, tap_gradient

TILE, WARPS, STAGES = 64, 4, 1  # rows and warps of a program at large batches; more stages overflow shared memory


@triton.jit
def _scale(
    x,
    taps,
    mix,
    bias,
    out,
    kept,
    rows,
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
    out_token,
    out_part,
    out_start,
    SHARES: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
    CHAIN: tl.constexpr,
    BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """CHAIN: the input is the scale before, read from `out` itself. KEEP: store what enters the projection."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = m < rows
    image, n = (m // tokens).to(tl.int64), m % tokens
    y, z = (n - prefix) // width, (n - prefix) % width
    patch = real & (n >= prefix)
    if CHAIN:
        base = out + image * tokens * out_token
        token, part, start = out_token, out_part, x_start
    else:
        base = x + image * x_batch
        token, part, start = x_token, x_part, x_start
    q = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    k, v = q, q
    dim: tl.constexpr = SHARES * SHARE
    for share in range(SHARES):
        for first in range(0, SHARE, LANES):
            inner = first + tl.arange(0, LANES)
            c = share * SHARE + inner
            at = share * part + start + inner
            fits = inner < SHARE
            if SIDE > 0:
                total = tl.zeros((ROWS, LANES), dtype=tl.float32)
                for tap in tl.static_range(SIDE * SIDE):
                    dy = tap // SIDE - SIDE // 2
                    dx = tap % SIDE - SIDE // 2
                    seen = patch & (y + dy >= 0) & (y + dy < height) & (z + dx >= 0) & (z + dx < width)
                    if tap == SIDE * SIDE // 2:
                        seen = real
                    where = base + (n + dy * width + dx) * token
                    value = tl.load(where[:, None] + at[None, :], mask=seen[:, None] & fits[None, :], other=0.0)
                    weight = tl.load(taps + tap * tap_step + c * tap_channel, mask=fits, other=0.0).to(tl.float32)
                    if tap == SIDE * SIDE // 2:  # a prefix token has no neighbours and passes as it is
                        total += value.to(tl.float32) * tl.where(patch[:, None], weight[None, :], 1.0)
                    else:
                        total += value.to(tl.float32) * weight[None, :]
                entered = total.to(out.dtype.element_ty)
            else:
                here = base + n * token
                entered = tl.load(here[:, None] + at[None, :], mask=real[:, None] & fits[None, :], other=0.0)
            if KEEP:  # noqa: SIM102  one is known when compiling, the other when running
                if tl.program_id(1) == 0:
                    goal = kept + m.to(tl.int64)[:, None] * dim + c[None, :]
                    tl.store(goal, entered, mask=real[:, None] & fits[None, :])
            block = mix + c[:, None] + column[None, :] * dim
            full = fits[:, None] & (column < WIDTH)[None, :]
            q = tl.dot(entered, tl.load(block, mask=full, other=0.0), q, input_precision=PRECISION)
            k = tl.dot(entered, tl.load(block + WIDTH * dim, mask=full, other=0.0), k, input_precision=PRECISION)
            v = tl.dot(entered, tl.load(block + 2 * WIDTH * dim, mask=full, other=0.0), v, input_precision=PRECISION)
    whole = column < WIDTH
    if BIAS:
        q += tl.load(bias + column, mask=whole, other=0.0).to(tl.float32)[None, :]
        k += tl.load(bias + WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
        v += tl.load(bias + 2 * WIDTH + column, mask=whole, other=0.0).to(tl.float32)[None, :]
    goal = out + m.to(tl.int64)[:, None] * out_token + (out_start + column)[None, :]
    inside = real[:, None] & whole[None, :]
    tl.store(goal, q.to(out.dtype.element_ty), mask=inside)
    tl.store(goal + out_part, k.to(out.dtype.element_ty), mask=inside)
    tl.store(goal + 2 * out_part, v.to(out.dtype.element_ty), mask=inside)


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
        entered = tokens.new_empty(images, count, mixes[i].shape[1] if keep and taps[i].numel() else 0)
        _launch(tokens, taps[i], mixes[i], bias if i == 0 else None, out, entered, i, widths, (height, width, prefix))
        kept.append(entered)
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


def _launch(
    tokens: Tensor,
    weight: Tensor,
    mix: Tensor,
    bias: Tensor | None,
    out: Tensor,
    kept: Tensor,
    i: int,
    widths: list[int],
    lattice: tuple[int, int, int],
) -> None:
    images, count, dim = tokens.shape
    rows, full, share = images * count, sum(widths), widths[i - 1] if i else dim
    taps = _taps(weight, rows)
    tile = TILE if rows > 8192 else 16
    lanes = min(64, max(16, triton.next_power_of_2(share)))
    columns = min(128, max(16, triton.next_power_of_2(widths[i])))
    precision = "ieee" if tokens.dtype == torch.float32 else "tf32"
    wrap_triton(_scale)[(triton.cdiv(rows, tile), triton.cdiv(widths[i], columns))](
        tokens, taps, mix, mix if bias is None else bias, out, kept, rows, count, *lattice,
        tokens.stride(0), tokens.stride(1), 0, sum(widths[: i - 1]) if i else 0, taps.stride(0), taps.stride(1),
        3 * full, full, sum(widths[:i]),
        SHARES=3 if i else 1, SHARE=share, WIDTH=widths[i], SIDE=weight.shape[-1] if weight.numel() else 0, CHAIN=i > 0,
        BIAS=bias is not None, KEEP=kept.numel() > 0, ROWS=tile, LANES=lanes, COLUMNS=columns, PRECISION=precision,
        num_warps=WARPS if columns <= 64 else 2 * WARPS, num_stages=STAGES,
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
