"""Train on the CPU with an attention backward that reads its output in the wrong layout, as cuDNN's cached graph does.

python benchmarks/misread_output.py life --steps 60 --batch 32
"""

from __future__ import annotations

import argparse
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

import glocal

_misread: list[bool] = []  # one answer for each attention to come, first block first


class Attention(Function):
    """Softmax attention whose backward pass may take its output, laid out head by head, as laid out token by token."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        share = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        out = share @ v
        ctx.save_for_backward(q, k, v, share, out)
        ctx.misread = _misread.pop(0)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore
        q, k, v, share, out = ctx.saved_tensors
        if ctx.misread:
            images, heads, count, dim = out.shape
            out = out.contiguous().view(images, count, heads, dim).transpose(1, 2)
        inner = share * (grad @ v.mT - (grad * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return inner @ k, inner.mT @ q, share.mT @ grad


def main() -> None:
    """Train with the wrong gradients and compare them with the right ones on the way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--depth", type=int, default=12)
    args = parser.parse_args()
    F.scaled_dot_product_attention = lambda q, k, v, **_: Attention.apply(q, k, v)
    torch.manual_seed(0)
    host = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=100, depth=args.depth)
    model = glocal.enhance(host, *glocal.named(args.variant)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    draw = torch.Generator().manual_seed(1)
    patterns = F.interpolate(torch.randn(100, 3, 8, 8, generator=draw), 32)
    # Only attention before the last convolution has its output moved; the last block comes first in the backward pass.
    wrong = [True] * (args.depth - 1) + [False]
    for step in range(args.steps):
        labels = torch.randint(100, (args.batch,), generator=draw)
        images = patterns[labels] + torch.randn(args.batch, 3, 32, 32, generator=draw)
        if step in (0, 3, 10) or step % 20 == 5:
            compare(
                step, gradients(model, images, labels, [False] * args.depth), gradients(model, images, labels, wrong)
            )
        found = gradients(model, images, labels, wrong)
        print(f"step {step} norm {float(nn.utils.get_total_norm(list(found.values()))):.4g}", flush=True)
        optimizer.step()


def gradients(model: nn.Module, images: Tensor, labels: Tensor, misread: list[bool]) -> dict[str, Tensor]:
    """Give the gradients of one batch."""
    _misread[:] = misread
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def compare(step: int, right: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """Print the three parameters with the largest relative error."""
    errors = {name: float((found[name] - g).norm() / (g.norm() + 1e-12)) for name, g in right.items()}
    for name in sorted(errors, key=lambda each: -errors[each])[:3]:
        print(f"  step {step} {name}: relative error {errors[name]:.3g}")


if __name__ == "__main__":
    main()
