"""Every model that is a name for a host and mechanisms runs: tiny here, at full size under the slow marker.

The architectures themselves: tests/unit/models.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models._registry import _model_to_module
from torch import Tensor, nn

from glocal import ContextBroadcast, GlocalError, create_model, load, named, save
from glocal.named_models import NAMED

_VIT = {"embed_dim": 48, "img_size": 64}
_SWIN = {"embed_dim": 24, "img_size": 64}
_T2T = {"embed_dim": 48, "token_dim": 16, "num_heads": 4, "img_size": 64}
_PYRAMID = {"dims": (16, 32, 40, 64), "img_size": 64}
TINY: dict[str, dict[str, Any]] = {
    "deit_": _VIT,
    "vit_": _VIT,
    "swin": _SWIN,
    "tnt_": {"embed_dim": 60, "inner_dim": 12, "img_size": 64},
    "pit_": {"base_dims": (8, 8, 8), "img_size": 64},
    "mixer_": {"img_size": 64},  # timm fixes its width
    "pvt_": _PYRAMID,
    "t2t_": _T2T,
}
ALL = list(NAMED)


def root(name: str) -> str:
    """Name the host that a model stands on, through names that stand for other names."""
    return root(NAMED[name].host) if name in NAMED else name


def tiny(name: str) -> dict[str, Any]:
    shape = next(shape for start, shape in TINY.items() if root(name).startswith(start))
    small = {"img_size": 32} if name.split("_life")[0].endswith(("_32", "patch1")) else {}
    return {**shape, **small, "num_classes": 5}


def side(arguments: dict[str, Any]) -> int:
    return arguments["img_size"]


def run(model: nn.Module, size: int, batch: int = 2) -> Tensor:
    """Pass images forwards and back; every gradient there is must be a number, and the image must matter."""
    for each in model.get_classifier().parameters():  # pyright: ignore[reportCallIssue]
        nn.init.normal_(each)  # some heads start at zero
    images = torch.randn(batch, 3, size, size, requires_grad=True)
    logits = model.train()(images)
    logits.square().sum().backward()
    assert images.grad is not None and images.grad.abs().sum() > 0
    assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)
    model.zero_grad()
    return logits


def at_size(name: str, model: Any, arguments: dict[str, Any], size: int) -> nn.Module:
    """Bring a model to another image size the way its host offers."""
    if root(name).startswith(("t2t", "pvt")):  # any size, as it is
        return model
    if hasattr(model, "set_input_size"):
        model.set_input_size((size, size))
        return model
    return create_model(name, **{**arguments, "img_size": size})


@pytest.mark.parametrize("name", ALL)
def test_a_tiny_version_runs_forwards_and_back_at_two_sizes(name: str) -> None:
    arguments = tiny(name)
    model = create_model(name, **arguments)
    size = side(arguments)
    assert run(model, size).shape == (2, 5)
    larger = size + size // 2
    assert run(at_size(name, model, arguments, larger), larger).shape == (2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_full_model_runs_forwards_and_back_and_at_another_size(name: str) -> None:
    model: Any = create_model(name)
    size = model.pretrained_cfg["input_size"][-1]
    assert run(model, size, batch=1).shape == (1, 1000)
    other = {32: 48, 256: 192}.get(size, 192)
    with torch.no_grad():
        assert at_size(name, model, {}, other).eval()(torch.randn(1, 3, other, other)).isfinite().all()


# timm reports strides from 4 on whatever the patch size, so Swins of single pixels are left out.
PYRAMIDS = [name for name in ALL if root(name).startswith(("swin", "pvt")) and "patch1" not in name]


@pytest.mark.parametrize("name", PYRAMIDS)
def test_hierarchical_models_give_features_at_four_strides(name: str) -> None:
    arguments = {key: value for key, value in tiny(name).items() if key != "num_classes"}
    model: Any = timm.create_model(name, features_only=True, **arguments)
    assert model.feature_info.reduction() == [4, 8, 16, 32]
    maps = model.eval()(torch.randn(1, 3, 64, 64))
    assert [each.shape[-1] for each in maps] == [16, 8, 4, 2]
    assert [each.shape[1] for each in maps] == model.feature_info.channels()


def test_timm_knows_the_models_once_any_glocal_name_is_touched() -> None:
    code = "import glocal, timm; glocal.LIFE; assert timm.is_model('localvit_tiny') and timm.is_model('lit_tiny')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_name_takes_the_place_of_one_of_timms() -> None:
    assert {_model_to_module[name] for name in NAMED} == {"named_models"}


def test_a_name_stands_for_a_host_and_mechanisms_and_nothing_else() -> None:
    torch.manual_seed(1)
    by_name = create_model("localvit_tiny_eca", **tiny("localvit_tiny_eca")).eval()
    torch.manual_seed(1)
    arguments = {"num_heads": 4, **tiny("localvit_tiny_eca")}
    by_hand = create_model("deit_tiny_patch16_224", *named("local-ffn(gate=eca)"), **arguments).eval()
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(by_name(image), by_hand(image))


def test_a_named_model_made_by_timm_can_be_saved(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224_cbs", **tiny("vit_tiny_patch16_224_cbs")).eval()
    save(model, tmp_path / "model.safetensors")
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(load(tmp_path / "model.safetensors")(image), model(image))


def test_a_named_model_takes_further_mechanisms_and_is_saved_with_them(tmp_path: Path) -> None:
    arguments = tiny("deit_tiny_patch16_224_life")
    model: Any = create_model("deit_tiny_patch16_224_life", ContextBroadcast(scaled=True), **arguments).eval()
    save(model, tmp_path / "model.safetensors")
    image = torch.randn(1, 3, 64, 64)
    assert torch.equal(load(tmp_path / "model.safetensors")(image), model(image))
    assert {graft.mechanism for graft in model.glocal.grafts} == {"LIFE", "ContextBroadcast"}


def test_small_image_models_tell_timm_their_size() -> None:
    model: Any = create_model("deit_tiny_patch4_32_life", **tiny("deit_tiny_patch4_32_life"))
    assert timm.data.resolve_model_data_config(model)["input_size"] == (3, 32, 32)


def test_a_misspelled_name_gets_the_nearest_one() -> None:
    with pytest.raises(GlocalError, match="Did you mean 'localvit_tiny'"):
        create_model("localvit_tny")
