from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import glocal
from glocal.optimize import compile_training


def model() -> nn.Module:
    host = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3)
    return glocal.enhance(host, *glocal.named("life+local-ffn")).eval()


def test_the_optimised_copy_is_folded_and_the_original_untouched() -> None:
    plain = model()
    fast = glocal.optimize(plain)
    assert not any(isinstance(each, nn.BatchNorm2d) for each in fast.modules())
    assert any(isinstance(each, nn.BatchNorm2d) for each in plain.modules())


@pytest.mark.slow
def test_the_optimised_copy_gives_the_same_numbers() -> None:
    plain, images = model(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(glocal.optimize(plain)(images), plain(images), rtol=1e-4, atol=1e-5)


class Asks(nn.Module):
    """Tells whether cuDNN's attention may be chosen while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.look()
        return x + 1

    @torch.compiler.disable
    def look(self) -> None:
        self.seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        if len(self.seen) == 2:
            raise RuntimeError("two")


def test_training_is_compiled_without_cudnns_attention_and_puts_it_back() -> None:
    plain = Asks()
    run = compile_training(plain)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.equal(run(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="two"):
        run(torch.ones(3))
    assert plain.seen == [False, False]
    assert torch.backends.cuda.cudnn_sdp_enabled()
    plain(torch.ones(3))
    assert plain.seen[-1]


def test_compiled_training_has_the_gradients_of_eager_training() -> None:
    plain, images = model().train(), torch.randn(4, 3, 32, 32)
    found = []
    for run in (plain, compile_training(plain)):
        plain.zero_grad()
        run(images).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-3, atol=1e-6, msg=name)
