from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import glocal


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
