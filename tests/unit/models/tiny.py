"""Tiny versions of every architecture, as small as their design allows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from glocal.models import LIT, ExtraVisionTransformer, PyramidVisionTransformer, T2TViT

_PYRAMID: dict[str, Any] = {
    "img_size": 64,
    "depths": (1, 1, 2, 1),
    "dims": (8, 16, 24, 48),
    "heads": (1, 2, 2, 4),
    "mlp_ratios": (2, 2, 2, 2),
    "num_classes": 5,
}
_T2T: dict[str, Any] = {"token_dim": 12, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}

TINY = {
    "pvt": partial(PyramidVisionTransformer, **_PYRAMID, sr_ratios=(4, 2, 2, 1)),
    "pvt_msa": partial(PyramidVisionTransformer, **_PYRAMID, standard=True),
    "lit": partial(LIT, **_PYRAMID),
    "lit_star": partial(LIT, **_PYRAMID, deformable=False),
    "lit_absolute": partial(LIT, **_PYRAMID, relative=False),
    "t2t": partial(T2TViT, **_T2T, img_size=64),
    "t2t_transformer": partial(T2TViT, **_T2T, img_size=64, performer=False),
    "t2t_small": partial(T2TViT, **_T2T, img_size=32, small=True),
}
PYRAMIDS = [name for name in TINY if not name.startswith("t2t")]
EXTRA = partial(ExtraVisionTransformer, img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=2, num_classes=5)


def build(name: str, **arguments: Any) -> Any:
    """Build a tiny model whose every weight speaks."""
    torch.manual_seed(0)
    model = TINY[name](**arguments)
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.1)
    return model.eval()
