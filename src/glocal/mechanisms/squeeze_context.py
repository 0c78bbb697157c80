"""Squeeze-and-excitation over tokens, the comparison of the Context Broadcasting paper (Table 3).

Hu et al., "Squeeze-and-Excitation Networks". It has a name of its own to keep it apart from LocalFFN's SE gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.site import Layers, Seam, Site, chosen
from glocal.wrappers import After


class SqueezeTokens(nn.Module):
    """Scale each channel by a gate that the mean token decides; `peak` is the gate's upper limit."""

    def __init__(self, dim: int, reduced: int, *, peak: float = 1.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, reduced)
        self.fc2 = nn.Linear(reduced, dim)
        self.peak = peak
        self.init_weights()

    def init_weights(self) -> None:
        """Start a gate that may reach 2 at exactly 1, where it changes nothing."""
        if self.peak == 2.0:
            nn.init.zeros_(self.fc2.weight)
            nn.init.zeros_(self.fc2.bias)

    reset_parameters = init_weights  # hosts call the one or the other, after those of the layers inside

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc2(self.fc1(x.mean(dim=1, keepdim=True)).relu())
        return x * (self.peak * torch.sigmoid(gate))


@dataclass(frozen=True)
class SqueezeContext:
    """Graft `SqueezeTokens` where Context Broadcasting would sit: at the end of the feed-forward branch."""

    reduction: int = 16
    """How many times narrower the squeezed token is."""
    layers: Layers | None = None

    def __post_init__(self) -> None:
        if self.reduction < 1:
            raise GlocalError(f"SqueezeContext's reduction is {self.reduction}; it must be 1 or more, such as 16.")

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.FFN,)

    def takes(self, site: Site) -> bool:
        return chosen(site, self.layers)

    def replaces(self, preserve: bool) -> bool:
        return False

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        if site.sets is not None:
            raise GlocalError(
                "SqueezeContext averages padding too, of which this host has some. ContextBroadcast does not."
            )
        reduced = max(1, site.dim // self.reduction)
        # Preserving: twice the sigmoid of zero is exactly one.
        return After(old, site.dress(SqueezeTokens(site.dim, reduced, peak=2.0 if preserve else 1.0), old))
