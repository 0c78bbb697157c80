"""The mean token in Triton: a program sums all tokens of an image for a few channels, in float32."""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.library import register_autograd, triton_op, wrap_triton

from glocal.kernels.naming import operator_name

FEW = 32  # images
ROWS, LANES, AHEAD = 32, 64, 4  # tokens and channels at a time, and how many such loads are under way


@triton.jit
def _mean(
    x, out, count, x_batch, x_token, DIM: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, AHEAD: tl.constexpr
):
    c = tl.program_id(0) * LANES + tl.arange(0, LANES)
    here = x + tl.program_id(1).to(tl.int64) * x_batch + c[None, :]
    total = tl.zeros((ROWS, LANES), dtype=tl.float32)
    for first in tl.range(0, count, ROWS, num_stages=AHEAD):
        n = first + tl.arange(0, ROWS)
        mask = (n < count)[:, None] & (c < DIM)[None, :]
        total += tl.load(here + (n * x_token)[:, None], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / count
    tl.store(out + tl.program_id(1).to(tl.int64) * DIM + c, mean.to(out.dtype.element_ty), mask=c < DIM)


def run_mean(tokens: Tensor) -> Tensor:
    """Average (B, N, C) over its tokens: (B, C)."""
    images, count, dim = tokens.shape
    # Few images: few channels and all their tokens at once in each program, which is soonest done.
    rows, lanes, ahead = (ROWS, LANES, AHEAD) if images > FEW else (256, 16, 1)
    lanes = min(lanes, triton.next_power_of_2(dim))
    out = tokens.new_empty(images, dim)
    wrap_triton(_mean)[(triton.cdiv(dim, lanes), images)](
        tokens, out, count, tokens.stride(0), tokens.stride(1),
        DIM=dim, ROWS=rows, LANES=lanes, AHEAD=ahead, num_warps=4,
    )  # fmt: skip
    return out


mean_tokens = triton_op(operator_name("mean_token"), run_mean, mutates_args={})


def _keep(ctx, inputs, output) -> None:
    ctx.count = inputs[0].shape[1]


def _back(ctx, grad: Tensor) -> Tensor:
    return (grad / ctx.count)[:, None].expand(-1, ctx.count, -1)


register_autograd(operator_name("mean_token"), _back, setup_context=_keep)
