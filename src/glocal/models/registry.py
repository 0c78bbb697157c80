"""Puts models into timm's registry, one entry point per row of a table of shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models._builder import build_model_with_cfg
from timm.models._registry import generate_default_cfgs, register_model
from torch import nn

Shapes = Mapping[str, Mapping[str, Any]]


def register(
    home: str,
    kind: type[nn.Module],
    shapes: Shapes,
    *,
    first_conv: str | None = None,
    out_indices: int | tuple[int, ...],
) -> None:
    """Register `kind` under each name of `shapes`, with that row's arguments; `home` is the module that asks."""
    module = sys.modules[home]
    cfgs: dict[str, Any] = {
        f"{name}.untrained": _cfg(shape.get("img_size", 224), first_conv) for name, shape in shapes.items()
    }
    module.__dict__["default_cfgs"] = generate_default_cfgs(cfgs)
    module.__dict__.setdefault("__all__", [kind.__name__])  # timm adds each name to it
    for name, shape in shapes.items():
        module.__dict__[name] = register_model(_entry(home, kind, name, shape, out_indices))


def _entry(
    home: str, kind: type[nn.Module], name: str, shape: Mapping[str, Any], out_indices: int | tuple[int, ...]
) -> Callable[..., nn.Module]:
    features = {"out_indices": out_indices, "feature_cls": "getter"}

    def build(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return build_model_with_cfg(kind, name, pretrained, feature_cfg=dict(features), **{**shape, **arguments})

    build.__name__ = build.__qualname__ = name  # timm goes by the function's name and module
    build.__module__ = home
    build.__doc__ = f"Build {kind.__name__} with the shape of {name}."
    return build


def _cfg(size: int, first_conv: str | None) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": first_conv,
        "classifier": "head",
    }
