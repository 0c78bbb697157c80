"""LIT's first idea: early stages need no attention.

Pan et al., "Less is More: Pay Less Attention in Vision Transformers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.site import Layers, Seam, Site, chosen


class NoAttention(nn.Module):
    """An attention branch that says nothing: the block becomes an MLP block (Eq. 1)."""

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(x)


@dataclass(frozen=True)
class EarlyMLP:
    """Remove attention, and its norm, from early stages; on hosts of one stage, from the given layers."""

    stages: tuple[int, ...] = (0, 1)
    """Stages without attention, counted from 0."""
    layers: Layers | None = None
    """Layers without attention, in place of stages."""

    removes = True  # nothing else can sit in the attention it takes away
    silences = True  # its norm and drop path go too

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.ATTENTION,)

    def takes(self, site: Site) -> bool:
        if self.layers is not None:
            return chosen(site, self.layers)
        if site.stages == 1:
            raise GlocalError(
                f"EarlyMLP removes attention by stage, but this host has one stage of {site.depth} layers. "
                f'Give it layers, such as EarlyMLP(layers="lower") or early-mlp@0-{max(0, site.depth // 3 - 1)}.'
            )
        if outside := [stage for stage in self.stages if not 0 <= stage < site.stages]:
            raise GlocalError(f"stage {outside[0]} is not in a host of {site.stages} stages (0 to {site.stages - 1}).")
        return site.stage in self.stages

    def replaces(self, preserve: bool) -> bool:
        return True

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        if preserve:
            raise GlocalError("EarlyMLP takes attention away, so it cannot preserve the host. Leave out preserve=True.")
        return site.dress(NoAttention(), old)
