"""The mean token in Triton: a program sums all tokens of an image for a few channels, in float32."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton


@triton.jit
def _mean(x, out, count, x_batch, x_token, DIM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    c = tl.program_id(1) * LANES + tl.arange(0, LANES)
    here = x + tl.program_id(0).to(tl.int64) * x_batch + c[None, :]
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    for first in range(0, count, ROWS):
        n = first + tl.arange(0, ROWS)
        mask = (n < count)[:, None] & (c < DIM)[None, :]
        total += tl.load(here + (n * x_token)[:, None], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / count
    tl.store(out + tl.program_id(0).to(tl.int64) * DIM + c, mean.to(out.dtype.element_ty), mask=c < DIM)


def run_mean(tokens: Tensor) -> Tensor:
    """Average (B, N, C) over its tokens: (B, C)."""
    images, count, dim = tokens.shape
    lanes = min(64, triton.next_power_of_2(dim))
    out = tokens.new_empty(images, dim)
    wrap_triton(_mean)[(images, triton.cdiv(dim, lanes))](
        tokens, out, count, tokens.stride(0), tokens.stride(1), DIM=dim, ROWS=64, LANES=lanes, num_warps=4
    )
    return out


mean_tokens = triton_op("glocal::mean_token", run_mean, mutates_args={})


def _keep(ctx, inputs, output) -> None:
    ctx.count = inputs[0].shape[1]


def _back(ctx, grad: Tensor) -> Tensor:
    return (grad / ctx.count)[:, None].expand(-1, ctx.count, -1)


register_autograd("glocal::mean_token", _back, setup_context=_keep)
