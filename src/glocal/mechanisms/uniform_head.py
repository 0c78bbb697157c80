"""Uniform attention as a head of its own: variants A, B and C of Context Broadcasting's Table 1.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.site import Layers, Seam, Site, chosen
from glocal.wrappers import Beside


class UniformAttention(nn.Module):
    """A head that attends to every token equally: project the mean of its values.

    Heads are concatenated and projected, which is the same as adding each head's own projection, so this stands
    beside the learned heads instead of among them.
    """

    def __init__(self, dim: int, width: int, *, silent: bool = False) -> None:
        super().__init__()
        self.value = nn.Linear(dim, width)
        self.proj = nn.Linear(width, dim, bias=False)  # the learned heads' projection has the bias
        self.silent = silent
        self.init_weights()

    def init_weights(self) -> None:
        """A silent head starts by adding nothing."""
        if self.silent:
            nn.init.zeros_(self.proj.weight)

    reset_parameters = init_weights  # hosts call the one or the other, after those of the layers inside

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.value(x.mean(dim=1, keepdim=True)))  # the mean of values is the value of the mean


@dataclass(frozen=True)
class UniformHead:
    """Graft `UniformAttention` into every attention.

    a: in place of the last head; b: the same, twice as wide, which gives back the parameters of the removed queries
    and keys; c: in addition to all heads, 2 * dim wide, which is the 4 * dim^2 per layer that the paper's 29 M needs.
    """

    variant: Literal["a", "b", "c"] = "a"
    layers: Layers | None = None

    def __post_init__(self) -> None:
        if self.variant not in ("a", "b", "c"):
            raise GlocalError(f"UniformHead's variant is {self.variant!r}; use 'a', 'b' or 'c'.")

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.ATTENTION,)

    def takes(self, site: Site) -> bool:
        return chosen(site, self.layers)

    def replaces(self, preserve: bool) -> bool:
        return self.variant != "c"

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        if self.variant == "c":
            return Beside(old, UniformAttention(site.dim, 2 * site.dim, silent=preserve))
        if preserve:
            raise GlocalError("UniformHead takes a learned head away, so it cannot preserve the host. Variant 'c' can.")
        if site.resize is None or site.heads < 2:
            raise GlocalError(
                f"{type(old).__name__} cannot give up one of its {site.heads} heads for a uniform one. Use variant 'c'."
            )
        width = site.dim // site.heads
        new = UniformAttention(site.dim, width * (1 if self.variant == "a" else 2))
        _take_over_last_head(new, old, width)
        return Beside(site.resize(old, site.heads - 1, width), new)


@torch.no_grad()
def _take_over_last_head(new: UniformAttention, old: nn.Module, width: int) -> None:
    """Start from the values and projection of the head that makes room."""
    qkv, proj = old.get_submodule("qkv"), old.get_submodule("proj")
    if isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear):
        new.value.weight[:width] = qkv.weight[-width:]
        if qkv.bias is not None:
            new.value.bias[:width] = qkv.bias[-width:]
        new.proj.weight[:, :width] = proj.weight[:, -width:]
