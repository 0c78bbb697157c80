"""What enhance promises beyond running: a record, kept weights, and refusals that say what to do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import ParallelScalingBlock, ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import nn

from glocal import (
    DTM,
    LIFE,
    ContextBroadcast,
    ConvStem,
    EarlyMLP,
    GlocalError,
    LocalFFN,
    SqueezeContext,
    UniformHead,
    enhance,
    fold,
)
from glocal.mechanisms.early_mlp import NoAttention
from glocal.mechanisms.life import MultiScaleQKV
from tests.contract.cases import error, host, images, lively


def vit(**arguments: object) -> VisionTransformer:
    defaults = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 2, "num_classes": 5}
    return VisionTransformer(**{**defaults, **arguments})


def test_the_host_given_stays_as_it_was() -> None:
    plain = vit()
    before = copy.deepcopy(plain.state_dict())
    model = enhance(plain, LIFE(), LocalFFN())
    assert model is not plain
    assert not hasattr(plain, "glocal")
    assert before.keys() == plain.state_dict().keys()
    assert all(torch.equal(before[key], value) for key, value in plain.state_dict().items())
    assert not plain.patch_embed._forward_hooks


def test_inplace_changes_the_host_given() -> None:
    plain = vit()
    assert enhance(plain, LIFE(), inplace=True) is plain


def test_a_refusal_changes_nothing_even_inplace() -> None:
    plain = vit()
    names = [name for name, _ in plain.named_modules()]
    with pytest.raises(GlocalError):
        enhance(plain, LIFE(), ContextBroadcast(layers="9"), inplace=True)
    assert names == [name for name, _ in plain.named_modules()]


@pytest.mark.parametrize(
    "mechanisms, preserve",
    [
        ((LIFE(), ContextBroadcast()), True),
        ((LIFE(kernels=(1, 3, 5, 7, 9)),), False),
        ((LocalFFN(), EarlyMLP("0-1")), True),
    ],
)
def test_a_refusal_while_grafting_changes_nothing_either(mechanisms: tuple, preserve: bool) -> None:
    plain = vit(embed_dim=24)
    names = [name for name, _ in plain.named_modules()]
    with pytest.raises(GlocalError):
        enhance(plain, *mechanisms, inplace=True, preserve=preserve)
    assert names == [name for name, _ in plain.named_modules()]
    assert not hasattr(plain, "glocal")


def test_the_record_tells_what_went_where_and_what_was_kept() -> None:
    model = enhance(vit(), LIFE(layers="upper"), ContextBroadcast(scaled=True))
    record = model.glocal
    assert [(g.mechanism, g.path) for g in record.grafts if g.mechanism == "LIFE"] == [
        ("LIFE", "blocks.2.attn.qkv"),
        ("LIFE", "blocks.3.attn.qkv"),
    ]
    assert "blocks.0.attn.qkv.weight" in record.kept
    assert "blocks.2.attn.qkv.weight" in record.gone
    assert "blocks.2.attn.qkv.inner.pointwise.0.weight" in record.new
    assert set(record.kept) | set(record.new) == {name for name, _ in model.named_parameters()}
    assert "blocks.2.attn.qkv" in str(record)


@pytest.mark.parametrize(("wrap", "inner"), [(nn.DataParallel, "module"), (torch.compile, "_orig_mod")])
def test_a_wrapped_host_is_refused_with_the_place_of_what_it_wraps(wrap: Callable[..., Any], inner: str) -> None:
    with pytest.raises(GlocalError, match=f"Enhance model.{inner}, then wrap"):
        enhance(wrap(host("vit")), LIFE())


def test_a_second_enhance_adds_to_the_record() -> None:
    model = enhance(enhance(vit(), LIFE()), ContextBroadcast(scaled=True))
    assert {graft.mechanism for graft in model.glocal.grafts} == {"LIFE", "ContextBroadcast"}
    assert len(model.glocal.steps) == 2
    assert "blocks.0.attn.qkv.inner.pointwise.0.weight" in model.glocal.new


def test_kept_weights_keep_their_values() -> None:
    plain = host("vit")
    model = enhance(plain, LIFE(), LocalFFN())
    old, new = dict(plain.named_parameters()), dict(model.named_parameters())
    assert all(torch.equal(old[name], new[name]) for name in model.glocal.kept)
    life = model.blocks[0].attn.qkv.inner
    q, k, v = plain.blocks[0].attn.qkv.weight.chunk(3)
    assert torch.equal(life.pointwise[0].weight, torch.cat((q[:8], k[:8], v[:8])))
    assert torch.equal(model.blocks[0].mlp.inner.fc1.weight[..., 0, 0], plain.blocks[0].mlp.fc1.weight)


def test_local_ffn_silences_its_norm_and_drop_path_and_uniform_heads_do_not() -> None:
    model = enhance(vit(drop_path_rate=0.2, init_values=0.1), LocalFFN(), UniformHead("a"))
    block = model.blocks[3]
    assert all(isinstance(each, nn.Identity) for each in (block.norm2, block.drop_path2, block.ls2))
    assert not any(isinstance(each, nn.Identity) for each in (block.norm1, block.drop_path1, block.ls1))


def test_early_mlp_leaves_no_attention_and_no_norm_before_it() -> None:
    model = enhance(host("swin"), EarlyMLP(stages=(0,)))
    assert isinstance(model.layers[0].blocks[1].attn, NoAttention)
    assert isinstance(model.layers[0].blocks[1].norm1, nn.Identity)
    assert not isinstance(model.layers[1].blocks[0].attn, NoAttention)


def test_context_broadcasting_sits_in_the_upper_half_unless_scaled() -> None:
    layers = {graft.layer for graft in enhance(vit(), ContextBroadcast()).glocal.grafts}
    assert layers == {2, 3}
    assert {g.layer for g in enhance(vit(), ContextBroadcast(scaled=True)).glocal.grafts} == {0, 1, 2, 3}


def test_mid_equals_end_for_plain_broadcasting_only() -> None:
    plain, x = lively(vit()).double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    mid, end = (enhance(plain, ContextBroadcast(position=p, layers="all"))(x) for p in ("mid", "end"))
    assert error(mid.detach(), end.detach()) < 1e-12
    scaled = [lively(enhance(plain, ContextBroadcast(scaled=True, position=p))) for p in ("mid", "end")]
    for model in scaled:
        for name, each in model.named_parameters():
            if name.endswith("new.scale"):
                nn.init.ones_(each)
    assert error(scaled[0](x).detach(), scaled[1](x).detach()) > 1e-3


@pytest.mark.parametrize("block", [ParallelScalingBlock, ParallelThingsBlock, ResPostBlock])
def test_unusual_blocks_take_what_fits_and_refuse_the_rest(block: type[nn.Module]) -> None:
    plain, x = lively(vit(block_fn=block)).eval(), torch.randn(2, 3, 32, 32)
    kept = enhance(plain, LocalFFN(), ContextBroadcast(scaled=True), preserve=True)
    assert error(kept(x).detach(), plain(x).detach()) <= 1e-5
    if block is ParallelScalingBlock:
        with pytest.raises(GlocalError, match="front"):  # one projection makes its hidden map and more
            enhance(plain, ContextBroadcast(position="front"))
        with pytest.raises(GlocalError, match="ParallelScalingBlock"):
            enhance(plain, LocalFFN())
        with pytest.raises(GlocalError, match="LIFE has no place"):
            enhance(plain, LIFE())
    else:
        assert enhance(plain, LIFE(), LocalFFN()).eval()(x).isfinite().all()


def test_life_widths_change_the_attentions_width() -> None:
    model = enhance(vit(), LIFE(widths=(10, 10, 10)))
    attention = model.blocks[0].attn
    assert (attention.head_dim, attention.proj.in_features) == (15, 30)
    assert isinstance(attention.qkv.inner, MultiScaleQKV)
    assert not isinstance(model.blocks[0].norm1, nn.Identity)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_life_takes_unequal_widths_and_other_kernels() -> None:
    for mechanism in (LIFE(widths=(12, 8, 4)), LIFE(kernels=(3,)), LIFE(kernels=(1, 3, 3, 3))):
        assert enhance(vit(), mechanism)(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_given_widths_work_where_the_attention_cannot_be_widened() -> None:
    plain, x = host("swinv2"), images("swinv2")
    model = lively(enhance(plain, LIFE(widths=(6, 4, 2), layers="0-1"))).eval()
    assert model.layers[0].blocks[0].attn.qkv.inner.widths == (6, 4, 2)
    assert not torch.equal(model(x), plain(x))
    kept = enhance(plain, LIFE(widths=(6, 4, 2), layers="0-1"), preserve=True)
    assert error(kept(x).detach(), plain(x).detach()) <= 1e-5
    with pytest.raises(GlocalError, match="WindowAttention is fixed at 12"):
        enhance(plain, LIFE(widths=(6, 6, 6), layers="0-1"))


def test_a_conv_stem_keeps_the_lattice_and_may_drop_positions() -> None:
    for name in ("vit", "swin", "pvt_v2", "pit", "mixer"):
        plain, x = host(name), images(name)
        model = enhance(plain, ConvStem())
        embed = model.stem if name == "mixer" else model.patch_embed
        other = plain.stem if name == "mixer" else plain.patch_embed
        assert embed(x).shape == other(x).shape
    assert enhance(vit(), ConvStem(positions=False)).pos_embed is None
    assert enhance(vit(patch_size=4, img_size=28), ConvStem())(torch.randn(1, 3, 28, 28)).shape == (1, 5)


@pytest.mark.parametrize(
    "mechanisms, preserve, message",
    [
        ((), False, "no mechanism"),
        ((LIFE,), False, "not a mechanism"),
        (("life",), False, "not a mechanism"),
        ((LIFE(), LIFE()), False, "LIFE and LIFE both replace blocks.0.attn.qkv"),
        ((LIFE(), EarlyMLP(layers="0-1")), False, 'layers 0-1, where LIFE would sit. Give LIFE layers="2-3".'),
        ((ContextBroadcast(at="msa", layers="all"), EarlyMLP(layers="0-1")), False, "ContextBroadcast would sit"),
        ((ContextBroadcast(position="mid"), LocalFFN()), False, "where ContextBroadcast would sit"),
        ((LIFE(kernels=(1, 3, 3, 3, 3)),), False, "24 is not a multiple of 5"),
        ((LIFE(layers="7"),), False, "layer 7 is not in a host of 4 layers"),
        ((LIFE(layers="upperr"),), False, "not understood"),
        ((LIFE(widths=(10, 10, 11)),), False, "2 heads cannot share"),
        ((LIFE(widths=(10, 10, 10)),), True, "add up to 24"),
        ((ContextBroadcast(),), True, "CB_S can"),
        ((ConvStem(),), True, "cannot preserve"),
        ((EarlyMLP(layers="0"),), True, "cannot preserve"),
        ((UniformHead("b"),), True, "Variant 'c' can"),
        ((DTM(),), False, "VisionTransformer has no token merging, so DTM has no place in it. It takes: LIFE"),
    ],
)  # fmt: skip
def test_mistakes_get_one_clear_message(mechanisms: tuple, preserve: bool, message: str) -> None:
    with pytest.raises(GlocalError) as caught:
        enhance(vit(), *mechanisms, preserve=preserve)
    assert message in str(caught.value)


def test_an_unknown_host_is_named_with_what_is_known() -> None:
    with pytest.raises(GlocalError, match="Linear is not a host.*VisionTransformer"):
        enhance(nn.Linear(3, 3), LIFE())


def test_odd_channels_get_a_remedy_that_works() -> None:
    with pytest.raises(GlocalError, match="widths="):
        enhance(vit(embed_dim=32), LIFE())
    assert enhance(vit(embed_dim=32), LIFE(), preserve=True)
    assert enhance(vit(embed_dim=32), LIFE(widths=(11, 11, 10)))


def test_fold_leaves_the_model_alone_and_needs_no_gradient() -> None:
    model = lively(enhance(vit(), LocalFFN(), SqueezeContext()))
    folded = fold(model)
    assert any(isinstance(each, nn.BatchNorm2d) for each in model.modules())
    assert not any(each.requires_grad for each in folded.parameters())
    assert not folded.training
