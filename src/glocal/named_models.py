"""The papers' models by name: each a host, its arguments and mechanisms, registered with timm. No code of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import timm
import torch
from timm.models import register_model
from timm.models._features import FeatureGetterNet
from torch import nn

from glocal.enhance import Record, enhance
from glocal.mechanisms import named


@dataclass(frozen=True)
class Named:
    """What a name stands for."""

    host: str
    mechanisms: str = ""
    """As `glocal.named` reads them."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the host; whoever builds the model may give others."""
    idle: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Frozen parameters that the released model carries and never uses."""


_DEIT = {"tiny": "deit_tiny_patch16_224", "small": "deit_small_patch16_224"}
_SWINV2 = "swinv2_tiny_window8_256"
_SMALL_IMAGE = {"img_size": 32, "patch_size": 4}
_TNT = {"legacy": True, "embed_dim": 192, "inner_dim": 12, "depth": 12, "num_heads_inner": 3, "num_heads_outer": 3}

LIFE = {
    **{f"{host}_life": Named(host, "life") for host in (*_DEIT.values(), _SWINV2)},
    # A.3.1: 80 channels at each scale instead of 64.
    "deit_tiny_patch16_224_life80": Named(_DEIT["tiny"], "life(widths=(80,80,80))"),
    "deit_tiny_patch4_32": Named(_DEIT["tiny"], "", _SMALL_IMAGE),
    "deit_small_patch4_32": Named(_DEIT["small"], "", _SMALL_IMAGE),
    "swinv2_tiny_window8_32_patch1": Named(_SWINV2, "", {"img_size": 32, "patch_size": 1}),
    "deit_tiny_patch4_32_life": Named("deit_tiny_patch4_32", "life"),
    "deit_tiny_patch4_32_life_onescale": Named("deit_tiny_patch4_32", "life(kernels=(3,))"),
    "deit_small_patch4_32_life": Named("deit_small_patch4_32", "life"),
    "swinv2_tiny_window8_32_patch1_life": Named("swinv2_tiny_window8_32_patch1", "life"),
    # The paper narrows T2T-ViT-12 from 256 to 252, which three scales can share.
    "t2t_vit_12_life": Named("t2t_vit_12_252", "life"),
    "t2t_vit_12_32_life": Named("t2t_vit_12_252_32", "life"),
}

# The paper does not state the heads of LocalViT-T and -S; the released models have 4 and 8, DeiT 3 and 6.
_LOCAL_TINY = {
    "": "local-ffn",
    "_relu6": "local-ffn(gate=none,activation=relu6)",
    "_relu6_nodw": "local-ffn(gate=none,activation=relu6,depthwise=false)",
    "_mlp6_relu6": "local-ffn(gate=none,activation=relu6,expansion=6)",
    "_mlp6_relu6_nodw": "local-ffn(gate=none,activation=relu6,expansion=6,depthwise=false)",
    "_hswish": "local-ffn(gate=none)",
    "_eca": "local-ffn(gate=eca)",
    **{f"_se{reduction}": f"local-ffn(reduction={reduction})" for reduction in (96, 48, 4)},
    **{f"_{place}": f"local-ffn@{place}" for place in ("high", "mid", "low")},
    "_low8": "local-ffn@0-7",
    **{f"_mlp{ratio}": f"local-ffn(expansion={ratio})" for ratio in (1, 2, 3)},
    **{f"_mlp{ratio}_hswish": f"local-ffn(gate=none,expansion={ratio})" for ratio in (1, 2, 3)},
}
LOCALVIT = {
    "deit_tiny_mlp6_patch16_224": Named(_DEIT["tiny"], "", {"mlp_ratio": 6}),
    **{f"localvit_tiny{end}": Named(_DEIT["tiny"], text, {"num_heads": 4}) for end, text in _LOCAL_TINY.items()},
    "localvit_small": Named(_DEIT["small"], "local-ffn", {"num_heads": 8}),
    "tnt_tiny_patch16_224": Named("tnt_s_legacy_patch16_224", "", _TNT),  # the first public version of TNT
    # TNT's own release carries a table that it never adds.
    "tnt_small_patch16_224": Named("tnt_s_patch16_224", idle={"outer_tokens": (1, 196, 384)}),
    "tnt_base_patch16_224": Named("tnt_b_patch16_224", idle={"outer_tokens": (1, 196, 640)}),
    # The tokeniser has no gate, and the released model carries a norm there that it no longer uses.
    "localvit_t2t_7": Named("t2t_vit_7", "local-ffn+local-ffn(gate=none,at=tokeniser)", {"idle_norm": True}),
    "localvit_tnt_tiny": Named("tnt_tiny_patch16_224", "local-ffn"),
    # SE keeps 8 channels in the first two stages, as released: the printed 13.5 M need them.
    "localvit_pvt_tiny": Named("pvt_tiny", "local-ffn(reduction=64)@0-1+local-ffn(reduction=128)@2-3+local-ffn@4-7"),
    # Released only: SE keeps 16 channels at every width.
    "localvit_swin_tiny": Named(
        "swin_tiny_patch4_window7_224",
        "local-ffn(reduction=24)@0-1+local-ffn(reduction=48)@2-3"
        "+local-ffn(reduction=96)@4-9+local-ffn(reduction=192)@10-11",
    ),
}

_PVT_MSA = {"1": "early-mlp(stages=(0,))", "12": "early-mlp", "123": "early-mlp(stages=(0,1,2))"}
LIT = {
    "pvt_small_dtm": Named("pvt_small", "dtm"),
    **{f"pvt_small_msa_removed{end}": Named("pvt_small_msa", text) for end, text in _PVT_MSA.items()},
    # Without any attention a class token would hear nothing of the image, so tokens are averaged.
    "pvt_small_msa_removed1234": Named("pvt_small_msa", "early-mlp(stages=(0,1,2,3))", {"class_token": False}),
    "swin_tiny_dtm": Named("swin_tiny_patch4_window7_224", "dtm"),
}

_VIT = {"tiny": "vit_tiny_patch16_224", "small": "vit_small_patch16_224", "base": "vit_base_patch16_224"}
_PLACED = {"msa": "cb(at=msa)@all", "both": "cb(at=both)@all", "front": "cb(position=front)@all"}
CONTEXT = {
    **{f"{host}_cb": Named(host, "cb") for host in (*_VIT.values(), "pit_b_224", "mixer_s16_224")},
    **{f"{host}_cbs": Named(host, "cbs") for host in _VIT.values()},
    **{f"{host}_cb_all": Named(host, "cb@all") for host in _VIT.values()},
    **{f"{_VIT['small']}_cb_{place}": Named(_VIT["small"], text) for place, text in _PLACED.items()},
    f"{_VIT['small']}_cb_mid": Named(_VIT["small"], "cb(position=mid)@all"),
    f"{_VIT['small']}_uniform_a": Named(_VIT["small"], "uniform-head"),
    **{f"{_VIT['small']}_uniform_{each}": Named(_VIT["small"], f"uniform-head(variant={each})") for each in "bc"},
    f"{_VIT['small']}_se": Named(_VIT["small"], "squeeze-context"),
}

NAMED: dict[str, Named] = {**LIFE, **LOCALVIT, **LIT, **CONTEXT}


def build_named(name: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """Build a named model; with `pretrained`, the host's weights stay wherever their shapes allow."""
    entry = NAMED[name]
    features, out_indices = arguments.pop("features_only", False), arguments.pop("out_indices", 4)
    given = {key: value for key, value in arguments.items() if value is not None}
    shape = {**entry.arguments, **given}
    model = timm.create_model(entry.host, pretrained=pretrained, **{**_overlay(entry, shape), **shape})
    for parameter, shape in entry.idle.items():
        model.register_parameter(parameter, nn.Parameter(torch.zeros(shape), requires_grad=False))
    if entry.mechanisms:
        model = enhance(model, *named(entry.mechanisms), inplace=True)
    record: Record = getattr(model, "glocal", None) or Record(type(model).__name__)
    record.name, record.arguments, record.steps = name, given, []
    model.glocal = record  # pyright: ignore[reportArgumentType]
    return FeatureGetterNet(model, out_indices=out_indices) if features else model


def _overlay(entry: Named, shape: dict[str, Any]) -> dict[str, Any]:
    """Tell timm's data pipeline the image size of models that are made for another one than their host."""
    if "img_size" not in entry.arguments:
        return {}
    size = shape["img_size"]
    height, width = (size, size) if isinstance(size, int) else size
    return {"pretrained_cfg_overlay": {"input_size": (3, height, width), "crop_pct": 1.0}}


def _register(name: str) -> None:
    def entry(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return build_named(name, pretrained, **arguments)

    entry.__name__ = entry.__qualname__ = name
    register_model(entry)


for _name in NAMED:
    _register(_name)
