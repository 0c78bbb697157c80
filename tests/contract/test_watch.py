"""Watching attention: the map of the unfused implementation on every host, and not one bit of difference outside."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import DiffParallelScalingBlock, ParallelScalingBlock, VisionTransformer
from torch import Tensor, nn

from glocal import GlocalError, enhance
from glocal.explain import Look, capture, keep, watch
from glocal.explain.distance import relative_distance
from glocal.explain.entropy import entropy
from glocal.explain.rollout import RollOut, rollout
from glocal.lattice import Lattice
from glocal.models.lit import LIT
from glocal.models.pvt import PyramidVisionTransformer
from glocal.models.t2t_vit import T2TViT
from tests.contract import cases

OWN = {
    "pvt": partial(
        PyramidVisionTransformer,
        img_size=32,
        depths=(1, 1, 1),
        dims=(8, 16, 24),
        heads=(1, 2, 2),
        mlp_ratios=(1, 1, 1),
        sr_ratios=(4, 2, 1),
    ),
    "lit": partial(
        LIT,
        img_size=32,
        depths=(1, 1, 1),
        dims=(8, 16, 24),
        heads=(1, 2, 2),
        mlp_ratios=(1, 1, 1),
        attention_stages=(1, 2),
    ),
    "t2t": partial(T2TViT, img_size=32, embed_dim=24, depth=2, num_heads=2, token_dim=8, small=True),
}
ATTENDING = [name for name in cases.HOSTS if name != "mixer"]
GRAFTED = [
    (host, mechanism)
    for host, mechanism in cases.fitting()
    if mechanism in ("life", "cb_msa", "uniform_c", "dtm", "early_layers", "local_ffn") and host != "mixer"
]


def fuse(model: nn.Module, on: bool) -> nn.Module:
    """Turn every fused kernel on or off; timm leaves Swin's off by default."""
    if hasattr(model, "set_attn_implementation"):  # transformers
        model.set_attn_implementation("sdpa" if on else "eager")  # type: ignore[operator]
    for module in model.modules():
        if "fused_attn" in vars(module):
            module.fused_attn = on  # type: ignore[assignment]
    return model


@contextmanager
def unfused(model: nn.Module, gradients: bool = False) -> Iterator[dict[str, Tensor]]:
    """Read what enters each `attn_drop`, which is the map itself where the kernel is not fused.

    Plain attention in transformers gives its map beside its output.
    """
    maps: dict[str, Tensor] = {}

    def read(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            if gradients:
                args[0].retain_grad()
            maps[path] = args[0] if gradients else args[0].clone()

        return hook

    def told(path: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
            if gradients:
                output[1].retain_grad()
            maps[path] = output[1] if gradients else output[1].clone()

        return hook

    handles = [
        module.register_forward_pre_hook(read(name.removesuffix(".attn_drop")))
        for name, module in model.named_modules()
        if name.endswith("attn_drop")
    ]
    handles += [
        module.register_forward_hook(told(name))
        for name, module in model.named_modules()
        if "q_proj" in module._modules
    ]
    fuse(model, False)
    yield maps
    fuse(model, True)
    for handle in handles:
        handle.remove()


def build(host: str) -> nn.Module:
    return fuse(copy.deepcopy(cases.host(host)), True)


def told_of(seen: Iterable[Look]) -> list[Look]:
    """Leave out SigLIP's pool, whose own module tells no map (torch's attention has a test of its own)."""
    return [look for look in seen if look.path != "vision_model.head.attention"]


def check_against_unfused(model: nn.Module, images: Tensor) -> list[Look]:
    with torch.no_grad():
        outside = model(images)
        with watch(model) as seen:
            inside = model(images)
        with unfused(model) as maps:
            model(images)
    assert torch.equal(inside, outside)
    looks = told_of(seen)
    assert {look.path for look in looks} == set(maps)
    for look in looks:
        torch.testing.assert_close(look.kept, maps[look.path], atol=1e-5, rtol=0)
        assert look.kept.std(dim=-1).mean() > 1e-3  # a map that is flat would agree with any other
    return looks


@pytest.mark.parametrize("host", ATTENDING)
def test_maps_are_the_unfused_ones_and_outputs_keep_every_bit(host: str) -> None:
    looks = check_against_unfused(build(host), cases.images(host))
    for look in looks:
        assert look.queries is not None
        assert look.keys is not None
        assert look.attention.shape[-2:] == (len(look.queries), len(look.keys))
        torch.testing.assert_close(look.square.sum(dim=-1), torch.ones(look.square.shape[:-1]))


@pytest.mark.parametrize("name", OWN)
def test_our_own_models_are_watched(name: str) -> None:
    model = cases.lively(OWN[name](num_classes=5)).eval()
    looks = check_against_unfused(model, torch.randn(2, 3, 32, 32))
    assert len(looks) == {"pvt": 3, "lit": 2, "t2t": 2}[name]
    assert looks[-1].class_token == (name != "lit")
    check_against_unfused(model, torch.randn(1, 3, 48, 32))
    flow = rollout([look.square for look in looks], [look.queries for look in looks])
    torch.testing.assert_close(flow.sum(dim=-1), torch.ones(flow.shape[:2]))


def test_a_tokeniser_that_attends_stands_beside_the_layers() -> None:
    model = cases.lively(OWN["t2t"](num_classes=5, performer=False)).eval()
    attention = model.tokens_to_token.attention1.attn  # type: ignore[union-attr]
    read: list[Tensor] = []
    attention.qkv.register_forward_hook(lambda m, a, out: read.append(out))  # type: ignore[union-attr, operator]
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 3, 32, 32))
    first = seen["tokens_to_token.attention1.attn"]
    query, key, _ = read[0].chunk(3, dim=-1)
    expected = (query @ key.transpose(1, 2) * attention.scale).softmax(dim=-1)  # type: ignore[operator]
    torch.testing.assert_close(first.kept, expected[:, None], atol=1e-5, rtol=0)
    assert first.queries == Lattice(16, 16)
    assert [look.group for look in seen] == ["tokeniser", "tokeniser", "self", "self"]


@pytest.mark.parametrize("host", [name for name, case in cases.HOSTS.items() if case.resize == "free"])
def test_lattices_follow_a_non_square_image(host: str) -> None:
    looks = check_against_unfused(build(host), torch.randn(1, 3, 32, 64))
    assert all(look.queries is not None and look.queries.width == 2 * look.queries.height for look in looks)


@pytest.mark.parametrize("host, mechanism", GRAFTED)
def test_enhanced_hosts_are_watched_as_well(host: str, mechanism: str) -> None:
    torch.manual_seed(3)
    model = cases.lively(enhance(build(host), cases.MECHANISMS[mechanism])).eval()
    check_against_unfused(fuse(model, True), cases.images(host))


@pytest.mark.parametrize("host", ATTENDING)
def test_rows_of_the_rolled_out_flow_sum_to_one(host: str) -> None:
    model = build(host)
    with torch.no_grad(), watch(model) as seen:
        model(cases.images(host))
    flow = rollout(seen.maps, seen.lattices)
    torch.testing.assert_close(flow.sum(dim=-1), torch.ones(flow.shape[:2]))


@pytest.mark.parametrize("host", ["swin", "swinv2", "swinv2_cr"])
def test_windows_are_assembled_where_their_tokens_sit(host: str) -> None:
    """The whole map times the values of the whole map is what the block's attention really gave."""
    model = build(host)
    seen_by_proj: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    blocks = {n: m for n, m in model.named_modules() if hasattr(m, "shift_size")}
    shifted = [name for name, block in blocks.items() if any(block.shift_size)]  # type: ignore[arg-type]
    assert shifted
    with torch.no_grad(), watch(model) as seen:
        for name, block in blocks.items():
            attention: Any = block.attn
            attention.proj = nn.Identity()
            block.register_forward_pre_hook(lambda m, args, name=name: values.update({name: args[0]}))
            gate: Any = block.drop_path1 if host == "swin" else block.norm1
            gate.register_forward_pre_hook(lambda m, args, name=name: seen_by_proj.update({name: args[0]}))
        model(cases.images(host))
    for name, block in blocks.items():
        attention = block.attn
        x = block.norm1(values[name]) if host == "swin" else values[name]  # type: ignore[operator]
        qkv = attention.qkv(x.flatten(1, 2))
        if host == "swinv2":
            qkv = qkv + torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
        value = qkv.unflatten(-1, (3, attention.num_heads, -1))[:, :, 2].transpose(1, 2)  # (B, heads, N, C)
        mixed = (seen[f"{name}.attn"].attention @ value).transpose(1, 2).flatten(2).view_as(seen_by_proj[name])
        torch.testing.assert_close(mixed, seen_by_proj[name], atol=1e-5, rtol=1e-4)


def test_a_map_that_windows_do_not_fill_leaves_its_padding_out() -> None:
    model = build("swin")
    model.set_input_size((24, 40), window_size=(8, 8), always_partition=True)  # type: ignore[operator]
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 3, 24, 40))
    assert seen[0].queries == Lattice(12, 20)
    sums = seen[0].attention.sum(dim=-1)
    assert sums.max() <= 1 + 1e-5
    assert sums.min() < 0.9  # some of the weight went to padding


@pytest.mark.parametrize("host", ATTENDING)
def test_gradients_are_those_of_the_unfused_maps(host: str) -> None:
    model, images = build(host), cases.images(host)
    with watch(model, gradients=True) as seen:
        model(images)[:, 1].sum().backward()
    with unfused(model, gradients=True) as maps:
        model(images)[:, 1].sum().backward()
    looks = told_of(seen)
    assert len(looks) == len(maps)
    for look in looks:
        expected = maps[look.path].grad
        assert expected is not None
        assert look.asked is not None
        torch.testing.assert_close(look.asked, expected, atol=1e-5, rtol=1e-3)
        assert look.gradient.shape == look.attention.shape


def test_a_map_that_its_host_drops_from_in_place_is_kept_whole() -> None:
    model = build("tnt").train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    with torch.no_grad(), watch(model) as seen:
        model(cases.images("tnt"))
    torch.testing.assert_close(seen["blocks.0.attn_out"].kept.sum(dim=-1), torch.ones(2, 2, 17))


@pytest.mark.parametrize("host", ["vit", "swin", "swinv2", "pvt_v2"])
def test_training_with_dropout_keeps_every_bit_too(host: str) -> None:
    model = build(host).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    images, results = cases.images(host), []
    for watching in (False, True):
        torch.manual_seed(5)
        model.zero_grad()
        if watching:
            with watch(model) as seen:
                out = model(images)
            assert torch.allclose(seen[0].kept.sum(dim=-1), torch.ones(()))  # the map before dropout
        else:
            out = model(images)
        out.sum().backward()
        results.append([out, *(each.grad for each in model.parameters() if each.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("mask", ["bool", "float", "causal"])
def test_masks_are_obeyed(mask: str) -> None:
    model, tokens = build("vit").blocks[0].attn, torch.randn(2, 6, 24)  # type: ignore[index, union-attr]
    allowed = torch.rand(2, 1, 6, 6) > 0.4
    allowed |= torch.eye(6, dtype=torch.bool)
    options: dict[str, Any] = {
        "bool": {"attn_mask": allowed},
        "float": {"attn_mask": torch.randn(1, 1, 6, 6)},
        "causal": {"is_causal": True},
    }[mask]
    with torch.no_grad(), watch(model) as seen:
        model(tokens, **options)
    with torch.no_grad(), unfused(model) as maps:
        model(tokens, **options)
    torch.testing.assert_close(seen[0].kept, next(iter(maps.values())), atol=1e-5, rtol=0)


def test_blocks_that_attend_themselves_are_seen() -> None:
    model = VisionTransformer(**cases._VIT, block_fn=ParallelScalingBlock).eval()
    looks = check_against_unfused(cases.lively(model), cases.images("vit"))
    assert [look.layer for look in looks] == [0, 1]


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224"])
def test_timms_models_that_are_no_hosts_are_watched_too(name: str) -> None:
    side = 56 if "14" in name else 64
    model = cases.lively(timm.create_model(name, img_size=side, depth=2, num_classes=5)).eval()
    looks = check_against_unfused(fuse(model, True), torch.randn(1, 3, side, side))
    assert [look.queries for look in looks] == [Lattice(4, 4, prefix=1)] * 2
    assert looks[0].class_token


def test_a_pool_stands_beside_the_layers() -> None:
    model = VisionTransformer(**cases._VIT, global_pool="map", class_token=False).eval()
    with torch.no_grad(), watch(model) as seen:
        model(cases.images("vit"))
    assert [look.group for look in seen] == ["self", "self", "other"]
    assert seen["attn_pool"].queries is None
    assert seen["attn_pool"].keys == Lattice(4, 4)
    assert len(seen.maps) == 2


def test_tnt_shows_its_inner_transformer_too() -> None:
    model = build("tnt")
    with torch.no_grad(), watch(model) as seen:
        model(cases.images("tnt"))
    inner = seen.looks("inner")
    assert len(inner) == len(seen.looks("self")) == 2
    assert inner[0].kept.shape[0] == 2 * 16  # each patch of each image is an image of its own


def test_torchs_own_attention_is_seen_and_keeps_its_fast_path() -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    with torch.no_grad():
        outside = module(query, query, query, need_weights=False)[0]
        with watch(module) as seen:
            inside = module(query, query, query, need_weights=False)[0]
        assert torch.equal(inside, outside)
        _, expected = module(query, query, query, average_attn_weights=False)
        torch.testing.assert_close(seen[0].kept, expected, atol=1e-6, rtol=0)
        with watch(module) as seen:
            module(query, key, key, key_padding_mask=torch.tensor([[False] * 4 + [True]] * 2))
        assert seen[0].kept.shape == (2, 2, 3, 5)
        assert seen[0].kept[..., -1].max() == 0


def test_gradient_checkpointing_is_not_seen_twice() -> None:
    model = build("vit").train()
    model.set_grad_checkpointing(True)  # type: ignore[operator]
    count = []
    with watch(model, each=lambda look: count.append(look.path)):
        model(cases.images("vit")).sum().backward()
    assert count == ["blocks.0.attn", "blocks.1.attn"]


def test_half_precision_is_summed_up_in_single() -> None:
    model = build("vit")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), watch(model) as seen:
        model(cases.images("vit"))
    assert seen[0].kept.dtype == torch.float32
    torch.testing.assert_close(seen[0].kept.sum(dim=-1), torch.ones(2, 2, 17))


# Options.


def test_layers_heads_and_paths_choose() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as whole:
        model(cases.images("vit"))
    with torch.no_grad(), watch(model, layers="upper", heads=(1,), device="cpu") as seen:
        model(cases.images("vit"))
    assert [look.layer for look in seen] == [1]
    assert torch.equal(seen[0].kept, whole[1].kept[:, 1:])
    with torch.no_grad(), watch(model, paths="blocks.0.*", heads="max") as seen:
        model(cases.images("vit"))
    assert [look.path for look in seen] == ["blocks.0.attn"]
    assert torch.equal(seen[0].kept, whole[0].kept.amax(dim=1, keepdim=True))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"layers": "7"}, "layer 7 is not in a host of 2 layers"),
        ({"heads": "meen"}, "Did you mean 'mean'"),
        ({"paths": "decoder.*"}, "fits no attention"),
        ({"gradients": True, "heads": "mean"}, "whole maps"),
    ],
)
def test_wrong_options_are_refused_and_leave_nothing_behind(options: dict[str, Any], words: str) -> None:
    model = build("vit")
    with pytest.raises(GlocalError, match=words), watch(model, **options):
        pass
    assert_untouched(model)


def test_a_head_that_is_not_there_is_refused_as_soon_as_it_shows() -> None:
    model = build("vit")
    with pytest.raises(GlocalError, match="heads 0 to 1"), watch(model, heads=(4,)):
        model(cases.images("vit"))
    assert_untouched(model)


@pytest.mark.parametrize("host", ["vit", "swin", "pvt_v2"])
def test_reducers_in_small_steps_equal_the_whole(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build(host), cases.images(host)
    with torch.no_grad(), watch(model) as whole:
        model(images)
    monkeypatch.setattr(capture, "BUDGET", 200)
    with torch.no_grad(), watch(model, reduce=keep.entropy) as dense:
        model(images)
    with torch.no_grad(), watch(model, reduce=keep.reach) as far:
        model(images)
    for a, b, c in zip(whole, dense, far, strict=True):
        assert a.queries is not None
        torch.testing.assert_close(b.kept, entropy(a.attention), atol=1e-5, rtol=1e-5)
        mean = c.kept[:, :, a.queries.prefix :].mean(dim=-1)
        torch.testing.assert_close(mean, relative_distance(a.attention, a.queries, a.keys, average="tokens"))
    with pytest.raises(GlocalError, match="reduced as it came"):
        _ = dense[0].attention


def test_fused_heads_in_small_steps_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build("vit"), cases.images("vit")
    with torch.no_grad(), watch(model) as whole:
        model(images)
    monkeypatch.setattr(capture, "BUDGET", 50)
    with torch.no_grad(), watch(model, heads="mean") as seen:
        model(images)
    torch.testing.assert_close(seen[1].kept, whole[1].kept.mean(dim=1, keepdim=True))


def test_rolling_out_as_it_comes_keeps_no_map() -> None:
    model, images, roll = build("vit"), cases.images("vit"), RollOut()
    with torch.no_grad(), watch(model) as whole:
        model(images)
    with torch.no_grad(), watch(model, heads="mean", each=lambda look: roll.add(look.square, look.queries)) as seen:
        model(images)
    assert len(seen) == 0
    torch.testing.assert_close(roll.flow, rollout(whole.maps))


def test_one_place_of_the_image_can_be_kept_alone() -> None:
    model, images = build("vit"), cases.images("vit")
    with torch.no_grad(), watch(model) as whole:
        model(images)
    with torch.no_grad(), watch(model, reduce=keep.Query(0.99, 0.3)) as seen:
        model(images)
    torch.testing.assert_close(seen[0].kept, whole[0].kept[:, :, 1 + 3 * 4 + 1 :][:, :, :1])
    swin = build("swin")
    with pytest.raises(GlocalError, match="windows"), torch.no_grad(), watch(swin, reduce=keep.Query(0.5, 0.5)):
        swin(cases.images("swin"))


# Manners.


def assert_untouched(model: nn.Module) -> None:
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_nothing_is_left_behind_even_after_an_error() -> None:
    model = build("swin")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError), watch(model):
        model(torch.randn(1, 5, 32, 32))
    assert_untouched(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad(), watch(model) as seen:  # and it can be watched again
        model(cases.images("swin"))
    assert len(seen) == 4


def test_an_error_inside_an_attention_does_not_confuse_the_next_pass() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as seen:
        with pytest.raises(RuntimeError):
            model.blocks[1].attn(torch.randn(1, 3, 7))  # type: ignore[index, union-attr]
        model(cases.images("vit"))
        torch.randn(1, 2, 3, 3).softmax(dim=-1)  # nobody's attention
    assert [look.path for look in seen] == ["blocks.0.attn", "blocks.1.attn"]


def test_each_pass_begins_anew() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(3, 3, 32, 32))
        model(torch.randn(1, 3, 64, 32))
    assert seen[0].kept.shape[0] == 1
    assert seen[0].queries == Lattice(8, 4, prefix=1)


def test_maps_go_when_nobody_holds_them() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as seen:
        model(cases.images("vit"))
    kept = weakref.ref(seen[0].kept)
    gc.disable()
    try:
        del seen
        assert kept() is None
    finally:
        gc.enable()


def test_a_copy_made_while_watching_is_not_watched() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as seen:
        twin = copy.deepcopy(model)
        twin(cases.images("vit"))
        assert len(seen) == 0
    twin(cases.images("vit"))


def test_what_cannot_be_watched_is_refused_by_name() -> None:
    with pytest.raises(GlocalError, match="has no attention"), watch(cases.host("mixer")):
        pass
    with pytest.raises(GlocalError, match="compiled"), watch(torch.compile(build("vit"))):  # type: ignore[arg-type]
        pass
    differing = VisionTransformer(**cases._VIT, block_fn=DiffParallelScalingBlock)
    with pytest.raises(GlocalError, match="subtracts"), watch(differing):
        pass
    with pytest.raises(GlocalError, match="set_fastpath_enabled"), watch(nn.TransformerEncoderLayer(8, 2)):
        pass


def test_a_gradient_that_never_came_is_explained() -> None:
    model = build("vit")
    with torch.no_grad(), watch(model) as seen:
        model(cases.images("vit"))
    with pytest.raises(GlocalError, match="gradients=True"):
        _ = seen[0].gradient


@pytest.mark.parametrize(
    "host, layer", [("vit", "blocks.1.norm1"), ("swin", "layers.1.blocks.1"), ("vit_registers", "blocks.1")]
)
def test_grad_cam_gets_maps(host: str, layer: str) -> None:
    model, shapes = build(host), []
    with torch.no_grad(), watch(model, layers=()) as seen:
        module = model.get_submodule(layer)
        handle = module.register_forward_hook(lambda m, a, out: shapes.append(seen.reshape_transform(out).shape))
        model(cases.images(host))
        handle.remove()
    assert shapes[0][-2:] == ((8, 8) if host == "swin" else (4, 4))
    assert shapes[0][1] == 24


def test_pytorch_grad_cam_takes_the_transform_as_it_is() -> None:
    cam = pytest.importorskip("pytorch_grad_cam", reason="pytorch-grad-cam is not installed")
    model, images = build("vit"), cases.images("vit")
    with watch(model, layers=()) as seen:
        made = cam.GradCAM(model, [model.blocks[-1].norm1], reshape_transform=seen.reshape_transform)  # type: ignore
        picture = made(input_tensor=images, targets=None)
    assert picture.shape == (2, 32, 32)
