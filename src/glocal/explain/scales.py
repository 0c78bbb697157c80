"""How strongly CB_S broadcasts, by depth.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention", section 3.3, Figure 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.mechanisms.context import Broadcast


@dataclass(frozen=True)
class ScaleProfile:
    """Scaling weights by layer, first layer first; each field but the paths is a (layers,) tensor."""

    paths: tuple[str, ...]
    mean: Tensor
    """Average weight: how much uniform attention the layer asks for."""
    magnitude: Tensor
    """Average absolute weight."""
    ratio: Tensor
    """10 % quantile of the absolute weights over their 90 % quantile: 1 when all channels agree, 0 when few use it."""


def scale_profile(model: nn.Module) -> ScaleProfile:
    """Read the scaling weights of every CB_S in a model."""
    found = {
        path: module.scale.detach().float().cpu()
        for path, module in model.named_modules()
        if isinstance(module, Broadcast) and module.scale is not None
    }
    if not found:
        raise GlocalError(
            f"{type(model).__name__} has no CB_S, so there are no scaling weights to show. "
            f"Graft it with ContextBroadcast(scaled=True), 'cbs' on the command line."
        )
    return ScaleProfile(tuple(found), *scale_statistics(list(found.values())))


def scale_statistics(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Give the mean, the mean magnitude and the 10 %-to-90 % ratio of each layer's weights; the ratio of zeros is 0."""
    low = torch.stack([each.abs().quantile(0.1) for each in weights])
    high = torch.stack([each.abs().quantile(0.9) for each in weights])
    ratio = torch.where(high > 0, low / high.clamp_min(torch.finfo(high.dtype).tiny), torch.zeros_like(high))
    return torch.stack([each.mean() for each in weights]), torch.stack([each.abs().mean() for each in weights]), ratio
