"""What timm wants to know about each model: input size, normalisation, the names of its ends."""

from __future__ import annotations

from typing import Any

from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD


def cfg(size: int = 224, first_conv: str | None = "stages.0.merge.proj") -> dict[str, Any]:
    """Describe a model without pretrained weights."""
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": first_conv,
        "classifier": "head",
        "fixed_input_size": False,
    }
