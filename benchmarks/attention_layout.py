"""Call attention's backward twice, the output laid out one way and then the other: are the gradients right both times?

python benchmarks/attention_layout.py            # cuDNN's and flash attention, on a GPU
python benchmarks/attention_layout.py --device cpu
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

aten = torch.ops.aten
ORDERS = {
    "output by token, then by head": (("token", "token"), ("head", "token"), ("token", "token")),
    "output by head, then by token": (("head", "token"), ("token", "token")),
    "gradient by token, then by head": (("token", "token"), ("token", "head")),
}


def main() -> None:
    """Print the error of each gradient for each backend and each order of layouts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    backends = {"cpu": _cpu} if args.device == "cpu" else {"cudnn": _cudnn, "flash": _flash}
    print(f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for name, backend in backends.items():
        # A batch size of its own gives each order a fresh entry in whatever the backend caches by shape.
        for batch, (order, layouts) in enumerate(ORDERS.items(), start=args.batch):
            for step, (of_out, of_grad) in enumerate(layouts):
                errors = measure(backend, batch, args.device, of_out, of_grad)
                told = " ".join(f"{k} {v:.1e}" for k, v in errors.items())
                print(
                    f"{name}: {order}: call {step + 1}, output by {of_out}, gradient by {of_grad}: {told}", flush=True
                )


def measure(
    backend: Callable[..., tuple[Tensor, ...]], batch: int, device: str, out: str, grad: str
) -> dict[str, float]:
    """Give the relative errors of dq, dk and dv against float64."""
    torch.manual_seed(0)
    # As compiled LIFE lays them out: q a view of the joined projection, k and v copies, (batch, heads, tokens, 64).
    q = torch.randn(batch, 65, 3, 3, 64, device=device).bfloat16()[:, :, 0].transpose(1, 2)
    k, v, g = (torch.randn(batch, 65, 3, 64, device=device).bfloat16().transpose(1, 2) for _ in range(3))
    v = v + 1  # a mean in the values, as training puts it there: then the output matters in the backward pass
    found = backend(laid(g, grad), q, k, v, lambda o: laid(o, out))
    wanted = _exact(g.double(), q.double(), k.double(), v.double())
    pairs = zip(("dq", "dk", "dv"), found, wanted, strict=True)
    return {name: float((mine.double() - right).norm() / right.norm()) for name, mine, right in pairs}


def laid(x: Tensor, by: str) -> Tensor:
    """Lay (B, heads, N, D) out head by head or token by token; the values stay."""
    return x.contiguous() if by == "head" else x.transpose(1, 2).contiguous().transpose(1, 2)


def _exact(g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in (q, k, v)]
    out = (inputs[0] @ inputs[1].mT * q.shape[-1] ** -0.5).softmax(-1) @ inputs[2]
    return torch.autograd.grad(out, inputs, g)


def _cudnn(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lay: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    out, lse, cum_q, cum_k, most_q, most_k, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True
    )
    return aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, lay(out), lse, seed, offset, None, cum_q, cum_k, most_q, most_k, 0.0, False
    )


def _flash(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lay: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    out, lse, cum_q, cum_k, most_q, most_k, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, k, v)
    return aten._scaled_dot_product_flash_attention_backward(
        g, q, k, v, lay(out), lse, cum_q, cum_k, most_q, most_k, 0.0, False, seed, offset
    )


def _cpu(g: Tensor, q: Tensor, k: Tensor, v: Tensor, lay: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, lay(out), lse, 0.0, False)


if __name__ == "__main__":
    main()
