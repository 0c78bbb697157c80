"""Watching models of transformers: the maps their own eager attention gives, with the fused kernel on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glocal.explain import rollout, watch
from glocal.lattice import Lattice
from tests.contract.cases import lively

hf = pytest.importorskip("transformers", reason="transformers is not installed; pip install 'glocal[transformers]'")


def both(kind: Any, config: Any, inputs: dict[str, Tensor]) -> tuple[nn.Module, Any, Any]:
    """Build one model with fused attention and its twin with plain attention that tells its maps."""
    config._attn_implementation = "sdpa"
    try:
        fused = lively(kind(config)).eval()
    except ValueError:  # ViLT knows plain attention only
        config._attn_implementation = "eager"
        fused = lively(kind(config)).eval()
    config._attn_implementation = "eager"
    plain = kind(config).eval()
    plain.load_state_dict(fused.state_dict())
    with torch.no_grad():
        outside = seeded(fused, inputs)
        with watch(fused) as seen:
            inside = seeded(fused, inputs)
        told = seeded(plain, {**inputs, "output_attentions": True})
    for name, value in outside.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, inside[name])
    return fused, seen, told


def seeded(model: nn.Module, inputs: dict[str, Any]) -> Any:
    torch.manual_seed(4)  # ViLT draws its patches in random order
    return model(**inputs)


def test_vit_is_watched() -> None:
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    _, seen, told = both(hf.ViTModel, config, {"pixel_values": torch.randn(2, 3, 32, 32)})
    assert seen.lattices == [Lattice(4, 4, prefix=1)] * 2
    for look, expected in zip(seen, told.attentions, strict=True):
        torch.testing.assert_close(look.kept, expected, atol=1e-5, rtol=0)
        assert look.class_token
    assert rollout(seen.maps).shape == (2, 17, 17)


def test_detr_is_watched_in_encoder_decoder_and_across() -> None:
    backbone = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=5,
    )
    _, seen, told = both(hf.DetrModel, config, {"pixel_values": torch.randn(1, 3, 64, 96)})
    expected = (
        *told.encoder_attentions,
        *(m for pair in zip(told.decoder_attentions, told.cross_attentions, strict=True) for m in pair),
    )
    assert [look.group for look in seen] == ["self", "self", "decoder", "cross", "decoder", "cross"]
    for look, each in zip(seen, expected, strict=True):
        torch.testing.assert_close(look.kept, each, atol=1e-5, rtol=0)
    assert seen.lattices == [Lattice(2, 3)] * 2
    crossing = seen.looks("cross")[0]
    assert crossing.queries is None
    assert crossing.keys == Lattice(2, 3)


def test_vilt_is_watched_without_a_lattice() -> None:
    config = hf.ViltConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=32,
        patch_size=8,
        vocab_size=50,
    )
    inputs = {"input_ids": torch.randint(0, 50, (1, 6)), "pixel_values": torch.randn(1, 3, 32, 32)}
    _, seen, told = both(hf.ViltModel, config, inputs)
    assert seen.lattices == [None, None]  # patches in random order sit on none
    assert len(seen) == 2
    for look, expected in zip(seen, told.attentions, strict=True):
        torch.testing.assert_close(look.kept, expected, atol=1e-5, rtol=0)
