"""Compiled bf16 training stays on course for hundreds of steps (on a GPU; benchmarks/NOTES.md tells why)."""

from __future__ import annotations

import pytest
import timm
import torch
from torch.nn import functional as F

import glocal
from glocal.optimize import compile_training

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("variant", ["life", "local-ffn"])
def test_gradients_stay_those_of_eager_training(variant: str) -> None:
    host = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=100)
    model = glocal.enhance(host, *glocal.named(variant)).cuda().train()
    compiled, optimizer = compile_training(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    patterns = torch.randn(100, 3, 32, 32, device="cuda")
    for step in range(300):
        labels = torch.randint(100, (256,), device="cuda")
        images = patterns[labels] + torch.randn(256, 3, 32, 32, device="cuda")
        optimizer.zero_grad()
        _backward(compiled, images, labels)
        norm = _norm(model)
        assert norm < 20, f"gradient norm {norm:.3g} at step {step}"
        if step % 100 == 99:
            model.zero_grad()
            _backward(model, images, labels)
            assert norm == pytest.approx(_norm(model), rel=0.2)
        optimizer.step()


def _backward(run: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        F.cross_entropy(run(images), labels).backward()


def _norm(model: torch.nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
