"""Every architecture behaves as timm's models do, at any image size."""

from __future__ import annotations

import copy
import io

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from glocal import GlocalError, LatticeError
from tests.unit.models.tiny import PYRAMIDS, TINY, build

every = pytest.mark.parametrize("name", TINY)
pyramids = pytest.mark.parametrize("name", PYRAMIDS)


def image(height: int = 64, width: int = 64, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@every
def test_images_of_any_size_and_shape_are_classified(name: str) -> None:
    model = build(name)
    for size in ((64, 64), (96, 96), (64, 128), (75, 61)):
        assert model(image(*size)).shape == (2, 5)
    wide = image(64, 128)
    assert not torch.allclose(model(wide), model(wide.transpose(2, 3)), atol=1e-4)


def test_an_image_too_small_for_reduced_attention_is_refused_with_the_remedy() -> None:
    assert build("pvt")(image(32, 64)).shape == (2, 5)
    with pytest.raises(LatticeError, match="shrinks its map by 4, but the map is 2x16. Use larger images"):
        build("pvt")(image(8, 64))
    assert build("pvt_msa")(image(8, 64)).shape == (2, 5)


@every
def test_another_usual_size_changes_no_output(name: str) -> None:
    model, other = build(name), build(name)
    other.set_input_size((96, 128))
    shapes = {n: tuple(p.shape) for n, p in other.named_parameters()}
    assert shapes != {n: tuple(p.shape) for n, p in model.named_parameters()}
    x = image(96, 128)
    assert torch.allclose(other(x), model(x), atol=1e-5)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        n for n, p in other.named_parameters() if p.requires_grad
    }


@pyramids
def test_features_come_at_four_strides(name: str) -> None:
    model, x = build(name), image(96, 64)
    tokens, maps = model.forward_intermediates(x)
    assert [tuple(each.shape[1:]) for each in maps] == [(8, 24, 16), (16, 12, 8), (24, 6, 4), (48, 3, 2)]
    assert [each["reduction"] for each in model.feature_info] == [4, 8, 16, 32]
    assert torch.equal(tokens, model.forward_features(x))
    prefix = model.num_prefix_tokens
    normed = model.forward_intermediates(x, indices=[3], norm=True, intermediates_only=True)[0]
    assert torch.equal(normed.flatten(2).transpose(1, 2), tokens[:, prefix:])
    early = model.forward_intermediates(x, indices=[0, 1], stop_early=True, intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(early, maps[:2], strict=True))


@pytest.mark.parametrize("name", ["pvt_tiny", "lit_small", "lit_tiny_star"])
def test_timm_makes_an_extractor_of_a_pyramid(name: str) -> None:
    shape = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32), "heads": (1, 1, 2, 2), "img_size": 64}
    extractor = timm.create_model(name, features_only=True, out_indices=(1, 2), **shape)
    assert extractor.feature_info.channels() == [16, 24]
    assert [tuple(each.shape[1:]) for each in extractor(image())] == [(16, 8, 8), (24, 4, 4)]
    assert not any(
        n.startswith(("model.stages.3", "model.head", "model.norm")) for n, _ in extractor.named_parameters()
    )


def test_timm_makes_an_extractor_of_a_t2t_vit() -> None:
    extractor = timm.create_model("t2t_vit_7", features_only=True, embed_dim=16, num_heads=2, depth=4, img_size=64)
    assert [tuple(each.shape[1:]) for each in extractor(image(64, 96))] == [(16, 4, 6)] * 3
    assert extractor.feature_info.reduction() == [16] * 3


def test_t2t_intermediates_are_maps_or_tokens() -> None:
    model, x = build("t2t"), image(64, 96)
    tokens, maps = model.forward_intermediates(x, norm=True)
    assert torch.equal(maps[-1].flatten(2).transpose(1, 2), tokens[:, 1:])
    flat = model.forward_intermediates(x, indices=[2], output_fmt="NLC", return_prefix_tokens=True, norm=True)[1]
    assert torch.equal(torch.cat((flat[0][1], flat[0][0]), dim=1), tokens)
    assert model.feature_info[0]["reduction"] == 16
    assert build("t2t_small").feature_info[0]["reduction"] == 4


@every
def test_the_head_can_be_replaced_or_taken_away(name: str) -> None:
    model = build(name)
    model.reset_classifier(3)
    assert model(image()).shape == (2, 3)
    assert model.get_classifier() is model.head
    model.reset_classifier(0, "")
    assert model(image()).ndim == 3
    with pytest.raises(GlocalError, match="cannot pool by 'max'"):
        model.reset_classifier(3, "max")


def test_a_model_without_class_token_cannot_pool_by_it() -> None:
    with pytest.raises(GlocalError, match="no class token"):
        build("lit", global_pool="token")


@every
def test_recomputation_gives_the_same_gradients_for_two_sizes(name: str) -> None:
    model, pair = build(name), (image(64, 128), image(128, 64))
    wanted = _gradients(model, pair)
    model.set_grad_checkpointing()
    got = _gradients(model, pair)
    assert wanted.keys() == got.keys()
    assert all(torch.allclose(got[key], wanted[key], atol=1e-6) for key in wanted)
    assert wanted.keys() == {n for n, p in model.named_parameters() if p.requires_grad}


def _gradients(model: nn.Module, pair: tuple[Tensor, ...]) -> dict[str, Tensor]:
    model.zero_grad()
    torch.stack([model(x).square().mean() for x in pair]).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@every
def test_every_parameter_has_a_depth_and_the_undecayed_ones_exist(name: str) -> None:
    model = build(name)
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    assert model.no_weight_decay() <= names
    assert any("cls_token" in n or "bias_table" in n for n in model.no_weight_decay())
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.7)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)
    assert len({group["lr_scale"] for group in optimizer.param_groups}) >= 3


@every
def test_copies_and_pickles_give_the_same_outputs(name: str) -> None:
    model, x = build(name), image(64, 96)
    wanted = model(x)
    assert torch.equal(copy.deepcopy(model)(x), wanted)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), wanted)


@every
def test_half_precision_runs_and_mixed_precision_learns(name: str) -> None:
    model, x = build(name).train(), image()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    out.float().square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    assert build(name).bfloat16()(x.bfloat16()).isfinite().all()


@pytest.mark.parametrize(
    "name", [name if name == "pvt_msa" else pytest.param(name, marks=pytest.mark.slow) for name in TINY]
)
def test_one_graph_serves_all_sizes(name: str) -> None:
    model = build(name)
    rows, columns = torch.export.Dim("rows", min=2, max=8), torch.export.Dim("columns", min=2, max=8)
    sizes = ({2: 32 * rows, 3: 32 * columns},)
    with torch.no_grad():
        program = torch.export.export(model, (image(96, 128),), dynamic_shapes=sizes, strict=False)
        for size in ((64, 64), (160, 96)):
            assert torch.allclose(program.module()(image(*size)), model(image(*size)), atol=1e-5)


@pytest.mark.parametrize("name", ["pvt", "lit_absolute"])
def test_a_checkpoint_with_class_token_loads_into_a_model_without(name: str) -> None:
    model = build(name)
    dense = build(name, class_token=False)
    dense.load_state_dict(model.state_dict())
    assert dense.num_prefix_tokens == 0
    _, maps = model.forward_intermediates(image())
    _, without = dense.forward_intermediates(image())
    assert all(torch.equal(a, b) for a, b in zip(maps[:3], without[:3], strict=True))
    assert not torch.allclose(maps[3], without[3])  # the class token took part in the last stage


def test_dense_lit_normalises_the_maps_it_is_asked_for() -> None:
    model = build("lit", feature_norms=(1, 2, 3))
    _, maps = model.forward_intermediates(image())
    plain = build("lit")
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "feature_norms" not in k})
    _, raw = plain.forward_intermediates(image())
    assert torch.equal(maps[0], raw[0])
    wanted = model.feature_norms["2"](raw[2].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert torch.allclose(maps[2], wanted, atol=1e-6)
