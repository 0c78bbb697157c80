"""Tiny hosts and every mechanism: one row each. A new host or mechanism adds its row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from timm.layers.mlp import SwiGLU
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.mlp_mixer import MlpMixer
from timm.models.pit import PoolingVisionTransformer
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr
from timm.models.tnt import TNT
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from glocal import DTM, LIFE, ContextBroadcast, ConvStem, EarlyMLP, LocalFFN, SqueezeContext, UniformHead
from glocal.site import Mechanism
from tests.contract import transformers_hosts


@dataclass(frozen=True)
class Host:
    """How to build a tiny host, what it refuses, and how it takes other sizes."""

    build: Callable[..., nn.Module]
    refuses: frozenset[str] = frozenset()  # in the paper's form
    refuses_preserving: frozenset[str] = frozenset()  # beyond what no host can preserve
    size: tuple[int, int] = (32, 32)
    resize: str = "rebuild"  # how a new size is given: "free", "set_input_size" or "rebuild"
    classifies_by_token: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
_STAGES = {"embed_dim": 12, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
_SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, **_STAGES}
_NO_MERGE = frozenset({"dtm", "early_mlp"})  # one stage: no merging, and EarlyMLP wants layers
_LARGE_HEAD = frozenset({"uniform_a", "uniform_b"})

HOSTS: dict[str, Host] = {
    "vit": Host(partial(VisionTransformer, **_VIT, dynamic_img_size=True), _NO_MERGE, _NO_MERGE, resize="free",
                classifies_by_token=True),
    "vit_registers": Host(
        partial(VisionTransformer, **_VIT, reg_tokens=3, global_pool="avg", init_values=0.5, qk_norm=True,
                dynamic_img_size=True),
        _NO_MERGE, _NO_MERGE, resize="free",
    ),
    "deit_distilled": Host(partial(VisionTransformerDistilled, **_VIT), _NO_MERGE, _NO_MERGE,
                           resize="set_input_size", classifies_by_token=True),
    "vit_swiglu": Host(partial(VisionTransformer, **_VIT, mlp_layer=SwiGLU), _NO_MERGE | {"local_ffn"}, _NO_MERGE,
                       resize="set_input_size", classifies_by_token=True),
    "eva": Host(
        partial(Eva, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5, num_reg_tokens=2,
                use_rot_pos_emb=True, dynamic_img_size=True, qkv_bias=True),
        _NO_MERGE | _LARGE_HEAD, _NO_MERGE, resize="free",
    ),
    "swin": Host(partial(SwinTransformer, **_SWIN), _LARGE_HEAD | {"no_positions"}, resize="set_input_size"),
    "swinv2": Host(partial(SwinTransformerV2, **_SWIN), _LARGE_HEAD | {"no_positions"}, resize="set_input_size"),
    "swinv2_cr": Host(partial(SwinTransformerV2Cr, **_SWIN), _LARGE_HEAD | {"no_positions"}, resize="set_input_size"),
    "pvt_v2": Host(
        partial(PyramidVisionTransformerV2, embed_dims=(12, 24), depths=(1, 2), num_heads=(1, 2), sr_ratios=(2, 1),
                mlp_ratios=(2, 2), num_classes=5),
        _LARGE_HEAD | {"life", "no_positions"}, frozenset({"life"}), resize="free",
    ),
    "tnt": Host(
        partial(TNT, img_size=32, patch_size=8, embed_dim=24, inner_dim=8, depth=2, num_heads_outer=2,
                num_heads_inner=2, num_classes=5),
        _NO_MERGE | _LARGE_HEAD | {"life", "conv_stem", "no_positions"}, _NO_MERGE | {"life"},
        classifies_by_token=True,
    ),
    "pit": Host(
        partial(PoolingVisionTransformer, img_size=32, patch_size=8, stride=4, base_dims=(12, 12), depth=(1, 2),
                heads=(2, 4), num_classes=5, distilled=True),
        classifies_by_token=True,
    ),
    "mixer": Host(
        partial(MlpMixer, img_size=32, patch_size=8, embed_dim=24, num_blocks=2, num_classes=5),
        _NO_MERGE | _LARGE_HEAD | {"life", "early_layers", "uniform_c", "cb_msa", "no_positions"},
        _NO_MERGE | {"life", "uniform_c", "cbs_both"},
    ),
}  # fmt: skip

MECHANISMS: dict[str, Mechanism] = {
    "life": LIFE(),
    "local_ffn": LocalFFN(),
    "cb": ContextBroadcast(layers="all"),
    "cbs": ContextBroadcast(scaled=True),
    "cb_msa": ContextBroadcast(at="msa", layers="all"),
    "cbs_both": ContextBroadcast(scaled=True, at="both"),
    "cb_front": ContextBroadcast(position="front", layers="all"),
    "cb_mid": ContextBroadcast(position="mid", layers="all"),
    "dtm": DTM(),
    "early_mlp": EarlyMLP(stages=(0,)),
    "early_layers": EarlyMLP(layers="lower"),
    "uniform_a": UniformHead("a"),
    "uniform_b": UniformHead("b"),
    "uniform_c": UniformHead("c"),
    "squeeze": SqueezeContext(reduction=4),
    "conv_stem": ConvStem(),
    "no_positions": ConvStem(positions=False),
}
if transformers_hosts.HERE:
    HOSTS |= {
        "hf_vit": Host(transformers_hosts.vit, _NO_MERGE | _LARGE_HEAD, _NO_MERGE, resize="free",
                       classifies_by_token=True),
        "hf_dinov3": Host(transformers_hosts.dinov3, _NO_MERGE | _LARGE_HEAD | {"no_positions"}, _NO_MERGE,
                          resize="free"),
        "hf_siglip": Host(transformers_hosts.siglip, _NO_MERGE | _LARGE_HEAD | {"no_positions"}, _NO_MERGE,
                          resize="free"),
    }  # fmt: skip
# Mixer's CB at both branches needs an attention branch too.
HOSTS["mixer"] = Host(**{**HOSTS["mixer"].__dict__, "refuses": HOSTS["mixer"].refuses | {"cbs_both"}})

PRESERVING = ("life", "local_ffn", "cbs", "cbs_both", "dtm", "uniform_c", "squeeze")


def fitting(preserve: bool = False) -> list[tuple[str, str]]:
    """Name every (host, mechanism) pair that fits."""
    names = PRESERVING if preserve else tuple(MECHANISMS)
    return [
        (host, name)
        for host, case in HOSTS.items()
        for name in names
        if name not in (case.refuses_preserving if preserve else case.refuses)
    ]


def refused() -> list[tuple[str, str]]:
    """Name every pair that does not fit."""
    return [(host, name) for host, case in HOSTS.items() for name in MECHANISMS if name in case.refuses]


@cache
def host(name: str) -> nn.Module:
    """Build a host whose every weight speaks: LayerScale, post-norms and zero starts would hide a wrong graft."""
    torch.manual_seed(1)
    return lively(HOSTS[name].build()).eval()


@torch.no_grad()
def lively(model: nn.Module) -> nn.Module:
    """Give every parameter and BatchNorm statistic a value away from zero and one."""
    torch.manual_seed(3)
    for name, each in model.named_parameters():
        if each.ndim < 2:
            # Norm scales near 1; a squeezing gate's few ReLUs well above 0, or all of them may be dead.
            centre = 1.0 if name.endswith(("weight", "gamma", "gate.fc1.bias", "new.fc1.bias")) else 0.0
            each.copy_(centre + 0.2 * torch.randn_like(each))
        else:
            each.copy_(torch.randn_like(each) / max(1, each[0].numel()) ** 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


def images(name: str, batch: int = 2) -> Tensor:
    """Make a batch for a host."""
    torch.manual_seed(2)
    return torch.randn(batch, 3, *HOSTS[name].size)


def error(a: Tensor, b: Tensor) -> float:
    """Relative difference."""
    return float((a - b).norm() / b.norm())
