"""Detection heads: what they answer, what they match, what they leave alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from glocal import GlocalError, create_model, named
from glocal.heads.build import put_on
from glocal.heads.detr import DETR, pad, sine
from glocal.heads.detr_loss import SetLoss
from glocal.heads.pyramid import FeaturePyramid, feeding, spared
from glocal.lattice import Lattice

TINY: dict[str, Any] = {"depth": 3, "embed_dim": 24, "num_heads": 3, "num_classes": 0}
SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "layers": 2, "hidden": 32, "queries": 6}


def _host(**arguments: Any) -> nn.Module:
    return create_model("deit_tiny_patch16_224", *named("life"), img_size=64, **{**TINY, **arguments})


def _targets(count: int) -> list[dict[str, torch.Tensor]]:
    boxes = torch.tensor([[4.0, 4, 40, 44], [10, 20, 60, 62]])
    return [{"boxes": boxes[:count], "labels": torch.tensor([0, 2])[:count]} for _ in range(2)]


@pytest.mark.parametrize("name", ["detr", "detr-linear", "detr-life", "retinanet"])
def test_a_detector_gives_losses_in_training_and_boxes_inside_the_image_otherwise(name: str) -> None:
    options = SMALL if name.startswith("detr") else {"dim": 16, "score_thresh": 0.0}
    model = put_on(_host(), name, 3, **options)
    images = [torch.randn(3, 64, 64), torch.randn(3, 64, 64)]
    losses = model(images, _targets(2))
    assert all(torch.isfinite(each) for each in losses.values())
    sum(losses.values()).backward()
    assert not [name for name, each in model.named_parameters() if each.grad is None]  # or DDP would stop
    with torch.no_grad():
        found = model.eval()(images)
    assert len(found) == 2
    for each in found:
        assert each["boxes"].min() >= 0
        assert each["boxes"].max() <= 64
        assert set(each["labels"].tolist()) <= {0, 1, 2}


@pytest.mark.parametrize("name", ["detr", "retinanet"])
def test_an_image_without_objects_can_be_learned_from(name: str) -> None:
    model = put_on(_host(), name, 3, **(SMALL if name == "detr" else {"dim": 16}))
    losses = model([torch.randn(3, 64, 64)] * 2, _targets(0))
    assert all(torch.isfinite(each) for each in losses.values())
    sum(losses.values()).backward()


def test_boxes_keep_full_precision_under_autocast() -> None:
    model = put_on(_host(), "retinanet", 3, dim=16, score_thresh=0.0).eval()
    image = [torch.randn(3, 64, 64)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        boxes = model(image)[0]["boxes"]
    assert boxes.dtype == torch.float32
    assert not torch.equal(boxes, boxes.bfloat16().float())


def test_shares_of_the_image_keep_full_precision_under_autocast() -> None:
    model = put_on(_host(), "detr", 3, **SMALL).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        shares = model.answer(torch.randn(2, 3, 64, 64))[1]
    assert shares.dtype == torch.float32
    assert not torch.equal(shares, shares.bfloat16().float())
    assert model.double().answer(torch.randn(1, 3, 64, 64).double())[1].dtype == torch.float64


def test_every_encoder_projection_is_used() -> None:
    for project in ("linear", "life"):
        model = DETR(_host(), 3, project=project, **SMALL).eval()  # pyright: ignore[reportArgumentType]
        image = torch.randn(1, 3, 64, 64)
        with torch.no_grad():
            before = model.answer(image)[0]
            for layer in model.encoder:
                for each in layer.project.parameters():  # pyright: ignore
                    changed = copy.deepcopy(each.data)
                    each.data += 0.5 * torch.randn_like(each)
                    assert not torch.allclose(model.answer(image)[0], before)
                    each.data = changed


def test_images_of_other_sizes_are_padded_and_the_padding_is_not_seen() -> None:
    torch.manual_seed(0)
    model = DETR(_host(dynamic_img_size=True), 3, **SMALL).eval()
    small, large = torch.randn(3, 64, 64), torch.randn(3, 64, 96)
    _, sizes, absent = pad([small, large], 32)
    assert sizes == [(64, 64), (64, 96)]
    assert absent is not None
    assert absent[0, :, 64:].all()
    assert not absent[1].any()
    found = model([small, large])
    assert found[0]["boxes"][:, 2].max() <= 64


def test_positions_differ_from_place_to_place_and_are_scaled_to_the_image() -> None:
    position = sine(Lattice(4, 6), 16, None, torch.zeros(1))
    assert position.shape == (1, 24, 16)
    assert len({tuple(row.tolist()) for row in position[0].round(decimals=4)}) == 24


def test_matching_pairs_each_object_with_the_query_that_fits_it() -> None:
    pytest.importorskip("scipy", reason="matching comes with glocal[detect]")
    boxes = torch.tensor([[0.2, 0.2, 0.1, 0.1], [0.7, 0.7, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]])
    scores = torch.full((1, 3, 4), -4.0)
    scores[0, 0, 1] = scores[0, 1, 2] = scores[0, 2, 3] = 4.0
    wanted = [boxes[[1, 0]]]
    query, thing = SetLoss(3).match(scores, boxes[None], [torch.tensor([2, 1])], wanted)[0]
    assert dict(zip(query.tolist(), thing.tolist(), strict=True)) == {0: 1, 1: 0}


def test_a_perfect_answer_costs_almost_nothing() -> None:
    boxes = torch.tensor([[[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 0.1, 0.1]]])
    scores = torch.full((1, 2, 4), -20.0)
    scores[0, 0, 1] = scores[0, 1, 3] = 20.0
    targets = [{"boxes": torch.tensor([[0.0, 0, 32, 32]]), "labels": torch.tensor([1])}]
    losses = SetLoss(3)(scores[None], boxes[None], targets, [(64, 64)], (64, 64))
    assert sum(losses.values()) < 1e-5
    wrong = SetLoss(3)(scores.roll(1, 1)[None], boxes[None], targets, [(64, 64)], (64, 64))
    assert sum(wrong.values()) > 1


def test_a_plain_host_feeds_four_layers_at_four_sizes() -> None:
    host = create_model("deit_tiny_patch16_224", num_classes=0, embed_dim=24, num_heads=3, img_size=64)
    assert feeding(host) == [3, 5, 7, 11]
    pyramid = FeaturePyramid(host).eval()
    assert [tuple(each.shape[-2:]) for each in pyramid(torch.randn(1, 3, 64, 64))] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    assert pyramid.strides == [4, 8, 16, 32]


def test_context_broadcasting_leaves_the_blocks_that_feed_the_pyramid() -> None:
    host = create_model("deit_tiny_patch16_224", num_classes=0, embed_dim=24, num_heads=3)
    assert [each.layers for each in spared(host, named("cb"))] == [(6, 8, 9, 10)]  # upper half less 7 and 11
    assert [each.layers for each in spared(host, named("cbs"))] == [(0, 1, 2, 4, 6, 8, 9, 10)]
    assert spared(host, named("life")) == named("life")
    pyramid = create_model("swin_tiny_patch4_window7_224", num_classes=0, embed_dim=24, num_heads=(1, 2, 4, 8))
    assert [each.layers for each in spared(pyramid, named("cbs"))] == [(0, 2, 4, 5, 6, 7, 8, 10)]


def test_a_host_without_maps_and_an_unknown_option_are_refused_by_name() -> None:
    with pytest.raises(GlocalError, match="Linear gives no feature maps"):
        put_on(nn.Linear(2, 2), "retinanet", 3)
    with pytest.raises(GlocalError, match="does not take 'querries'. Did you mean 'queries'"):
        put_on(_host(), "detr", 3, querries=5)
    with pytest.raises(GlocalError, match="does not take 'score_tresh'. Did you mean 'score_thresh'"):
        put_on(_host(), "retinanet", 3, score_tresh=0.1)


def test_positions_and_tokens_of_the_host_do_not_decay_under_a_head() -> None:
    model = put_on(_host(), "retinanet", 3, dim=16)
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() & names
    assert any(name.endswith("host.pos_embed") for name in model.no_weight_decay() & names)


ANY_SIZE: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 2, "embed_dim": 24, "num_heads": 3, "dynamic_img_size": True},
    "swin_tiny_patch4_window7_224": {"embed_dim": 24, "depths": (1,) * 4, "num_heads": (1, 2, 4, 8)},
    "lit_small": {"depths": (1,) * 4, "dims": (12, 24, 48, 96), "feature_norms": (1, 2, 3)},
    "pvt_v2_b0": {"depths": (1,) * 4},
    "resnet18": {},
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_a_detector_takes_images_of_many_sizes_in_one_batch(name: str) -> None:
    arguments = ANY_SIZE[name] | ({"strict_img_size": False} if name.startswith("swin") else {})
    model = put_on(create_model(name, num_classes=0, **arguments), "retinanet", 3, dim=8, score_thresh=0.0)
    losses = model([torch.randn(3, 60, 100), torch.randn(3, 90, 70)], _targets(1))
    sum(losses.values()).backward()
    with torch.no_grad():
        first, second = model.eval()([torch.randn(3, 60, 100), torch.randn(3, 90, 70)])
    assert first["boxes"][:, 3].max() <= 60
    assert second["boxes"][:, 2].max() <= 70


def test_a_host_of_one_size_says_so() -> None:
    model = put_on(_host(), "retinanet", 3, dim=8)
    with pytest.raises(GlocalError, match="was built for another image size"):
        model([torch.randn(3, 60, 100)], _targets(1)[:1])
