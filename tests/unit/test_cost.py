from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from glocal import DTM, LIFE, GlocalError, cost, create_model, enhance
from glocal.measure.cost import cost_table, parse_size
from tests.contract.cases import HOSTS, host


def test_multiply_adds_are_those_counted_by_hand() -> None:
    model = create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=2, num_classes=5
    )
    tokens, dim, hidden = 17, 24, 96
    embed = 16 * 3 * 64 * dim
    block = tokens * dim * 3 * dim + 2 * tokens * tokens * dim + tokens * dim * dim + 2 * tokens * dim * hidden
    assert cost(model).macs == embed + block + dim * 5


def test_life_adds_34_multiply_adds_per_patch_and_channel() -> None:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    plain, life = (cost(create_model("vit_tiny_patch16_224", *m, **arguments)) for m in ((), (LIFE(),)))
    assert life.macs - plain.macs == 34 * 24 * 16
    assert life.params - plain.params == 32 * 24


def test_fused_and_unfused_attention_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HOSTS["vit"].build()
    fused = cost(model)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    assert cost(model).macs == fused.macs


def test_a_deformable_convolution_counts_as_a_plain_one() -> None:
    plain, dtm = cost(host("pvt_v2"), 32), cost(enhance(host("pvt_v2"), DTM()), 32)
    offsets, merge = 16 * 8 * 4 * 12, 16 * 24 * 4 * 12
    assert dtm.macs - plain.macs == offsets + merge - 16 * 24 * 9 * 12


def test_counting_leaves_the_model_alone() -> None:
    model = HOSTS["vit"].build()
    cost(model, (64, 32))
    assert next(model.parameters()).device == torch.device("cpu")
    assert model.training


def test_larger_images_cost_more() -> None:
    model = host("vit")
    assert cost(model, (32, 64)).macs > cost(model, 32).macs
    assert cost(model, (32, 64)).size == (32, 64)


def test_a_size_the_host_cannot_take_is_named() -> None:
    with pytest.raises(GlocalError, match="does not take 40x40 images"):
        cost(HOSTS["deit_distilled"].build(), 40)


@pytest.mark.parametrize("text", ["abc", "0", "12x", "x12", "-3", "3.5"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(GlocalError, match="224, or height by width"):
        parse_size(text)


def test_the_table_sets_variants_beside_host_and_paper() -> None:
    table = cost_table("deit_tiny_patch16_224", ["life", "cb"])
    rows = json.loads(table.render("json"))
    assert [row["model"] for row in rows] == ["deit_tiny_patch16_224", "+ life", "+ cb"]
    assert rows[1]["params_added"] == pytest.approx(0.073728)
    assert rows[1]["source"] == "LIFE Table 1 (100 classes)"
    assert abs(rows[1]["params_off"]) < 0.005
    assert rows[2]["gmacs_added_percent"] == 0
    assert table.render("md").count("|\n") >= 4
    assert table.render("csv").splitlines()[0].startswith("model,params,")
    assert "LIFE Table 1" in table.render("text")


def test_any_module_has_a_cost() -> None:
    assert cost(nn.Conv2d(3, 4, 3, padding=1), 8).macs == 64 * 4 * 27


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_costs_the_same(dtype: torch.dtype) -> None:
    model = enhance(host("vit"), LIFE())
    assert cost(copy.deepcopy(model).to(dtype)) == cost(model)
    assert next(model.parameters()).dtype == torch.float32


def test_a_model_of_transformers_is_counted_at_the_size_it_was_built_for() -> None:
    hf = pytest.importorskip("transformers")
    config = hf.ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8
    )
    model = hf.ViTModel(config)
    assert cost(model).size == (32, 32)
    with pytest.raises(GlocalError, match="does not take 40x40 images"):
        cost(model, 40)
    with pytest.raises(GlocalError, match="does not take -32x32 images"):
        cost(model, (-32, 32))
