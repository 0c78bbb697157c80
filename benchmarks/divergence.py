"""Train a small host in bf16, compiled and not, and compare gradients on the way: which part goes wrong, and when.

python benchmarks/divergence.py life --mode inductor --plain --steps 300
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import cast

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import glocal
from glocal.kernels import dispatch
from glocal.optimize import compile_training


def main() -> None:
    """Run one mechanism in one mode and print its course."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant")
    parser.add_argument(
        "--mode",
        default="inductor",
        choices=(
            "eager",
            "aot_eager",
            "aot_eager_decomp_partition",
            "inductor",
            "no_layout",
            "no_cudnn",
            "no_cudnn_attention",
            "same_layout",
            "no_reinplace",
            "shipped",
        ),
    )
    parser.add_argument("--plain", action="store_true", help="keep to plain PyTorch")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=20, help="compare gradients this often; 0: never")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--depth", type=int, default=12)
    args = parser.parse_args()
    with dispatch.plain() if args.plain else contextlib.nullcontext():
        norms = train(args)
    worst = max(norms)
    print(
        f"RESULT {args.variant} {args.mode} {'plain' if args.plain else 'kernels'}: "
        f"gradient norm first {norms[0]:.3g}, "
        f"largest {worst:.3g} at step {norms.index(worst)}, last {norms[-1]:.3g}",
        flush=True,
    )


def train(args: argparse.Namespace) -> list[float]:
    """Train, and give the gradient norm of each step."""
    torch.manual_seed(0)
    host = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=100, depth=args.depth)
    model = (host if args.variant == "host" else glocal.enhance(host, *glocal.named(args.variant))).cuda().train()
    run = compiled(model, args.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    norms: list[float] = []
    for step, (images, labels) in enumerate(batches(args.batch, args.steps)):
        if args.every and step % args.every == 0 and run is not model:
            compare(model, run, images, labels, step)
        optimizer.zero_grad()
        loss = backward(run, images, labels)
        norms.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
        if (args.every and step % args.every == 0) or not torch.isfinite(loss):
            print(f"step {step} loss {loss:.4f} norm {norms[-1]:.4g}", flush=True)
        if norms[-1] != norms[-1]:
            break
        optimizer.step()
    return norms


def compiled(model: nn.Module, mode: str) -> nn.Module:
    """Compile the model the way `mode` says."""
    import torch._inductor.config as inductor

    # Some of what tells modes apart is no part of torch's key: one would be given what another has left on disk.
    torch.compiler.config.cache_key_tag = mode
    if mode == "eager":
        return model
    if mode == "shipped":
        return compile_training(model)
    inductor.layout_optimization = mode != "no_layout"
    torch.backends.cudnn.enabled = mode != "no_cudnn"
    torch.backends.cuda.enable_cudnn_sdp(mode != "no_cudnn_attention")
    if mode == "same_layout":
        keep_attention_layout()
    if mode == "no_reinplace":
        inductor.reorder_for_locality = False
        inductor.allow_buffer_reuse = False
    backend = mode if mode.startswith("aot") else "inductor"
    return cast("nn.Module", torch.compile(model, backend=backend))


def keep_attention_layout() -> None:
    """Let inductor hand cuDNN's attention its output and incoming gradient token by token in every block."""
    from torch._inductor import ir, lowering

    operator = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

    def constraint(node: object, *args: object, **kwargs: object) -> tuple[object, object]:
        found, named = lowering.sdpa_constraint(node, *args, **kwargs)
        found = list(found)
        for i in (0, 4):  # the incoming gradient, the output
            found[i] = ir.ExternKernel.require_stride_order(found[i], (3, 1, 2, 0))
        return tuple(found), named

    lowering.add_layout_constraint(operator, constraint)


def backward(run: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """One forward and backward pass under bf16 autocast."""
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(run(images), labels)
    loss.backward()
    return loss.detach()


def compare(model: nn.Module, run: nn.Module, images: Tensor, labels: Tensor, step: int) -> None:
    """Print the parameters whose compiled gradient is farthest from the eager one."""
    grads: list[dict[str, Tensor]] = []
    for each in (model, run):
        model.zero_grad()
        backward(each, images, labels)
        grads.append({n: p.grad.float().clone() for n, p in model.named_parameters() if p.grad is not None})
    errors = {n: float((grads[1][n] - g).norm() / (g.norm() + 1e-12)) for n, g in grads[0].items()}
    for name, error in sorted(errors.items(), key=lambda pair: -pair[1])[:3]:
        eager, mine = (float(each[name].norm()) for each in grads)
        print(f"  step {step} {name}: relative error {error:.3g}, norm eager {eager:.3g} compiled {mine:.3g}")


def batches(size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Make images whose class is a pattern under noise."""
    draw = torch.Generator().manual_seed(1)
    patterns = F.interpolate(torch.randn(100, 3, 8, 8, generator=draw), 32).cuda()
    on_device = torch.Generator("cuda").manual_seed(2)
    for _ in range(steps):
        labels = torch.randint(100, (size,), generator=on_device, device="cuda")
        yield patterns[labels] + torch.randn(size, 3, 32, 32, generator=on_device, device="cuda"), labels


if __name__ == "__main__":
    main()
