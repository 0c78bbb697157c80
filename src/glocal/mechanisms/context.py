"""Context Broadcasting: every token hears the average token.

Hyeon-Woo et al., "Scratching Visual Transformer's Back with Uniform Attention".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.kernels.mean import mean_token
from glocal.site import Layers, Seam, SetsCell, Site, chosen
from glocal.wrappers import After, Before


class Broadcast(nn.Module):
    """Add the mean token to each token: CB (Eq. 1), or CB_S when given a width to scale by channel."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.scale = None if dim is None else nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, mean_token(x))  # over all tokens, the class token too, as in the paper

    def add(self, x: Tensor, mean: Tensor) -> Tensor:
        """Let tokens hear a mean."""
        return (x + mean) / 2 if self.scale is None else x + self.scale * mean


class SetBroadcast(nn.Module):
    """Broadcast where a sequence has text and image tokens: within one set, or over both; padding is left out."""

    def __init__(self, inner: Broadcast, tokens: Literal["all", "image", "text"], cell: SetsCell) -> None:
        super().__init__()
        self.inner = inner
        self.tokens = tokens
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        now = self.cell.sets()
        start, stop = {"all": (0, None), "text": (0, now.text), "image": (now.text, None)}[self.tokens]
        there = now.mask[:, start:stop, None].to(x.dtype)
        part = x[:, start:stop]
        mean = (part * there).sum(dim=1, keepdim=True) / there.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.cat((x[:, :start], self.inner.add(part, mean), x[:, part.shape[1] + start :]), dim=1)


@dataclass(frozen=True)
class ContextBroadcast:
    """Graft `Broadcast` at the end of the feed-forward branch (Table 4: the best place), or elsewhere to compare."""

    scaled: bool = False
    """CB_S: a learned weight per channel instead of one half."""
    at: Literal["mlp", "msa", "both"] = "mlp"
    """The branch it sits in (Table 4a)."""
    position: Literal["front", "mid", "end"] = "end"
    """Where in the feed-forward branch (Table 4b)."""
    tokens: Literal["all", "image", "text"] = "all"
    """Which tokens hear their own mean, where a host has image and text tokens (Table 10)."""
    layers: Layers | None = None
    """By default the upper half for CB and every layer for CB_S."""

    def __post_init__(self) -> None:
        if self.at not in ("mlp", "msa", "both"):
            raise GlocalError(f"ContextBroadcast's at is {self.at!r}; use 'mlp', 'msa' or 'both'.")
        if self.position not in ("front", "mid", "end"):
            raise GlocalError(f"ContextBroadcast's position is {self.position!r}; use 'front', 'mid' or 'end'.")
        if self.at == "msa" and self.position != "end":
            raise GlocalError(
                f"ContextBroadcast's position {self.position!r} is one of the MLP; with at='msa' use 'end'."
            )

        if self.tokens not in ("all", "image", "text"):
            raise GlocalError(f"ContextBroadcast's tokens is {self.tokens!r}; use 'all', 'image' or 'text'.")

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        mlp = Seam.HIDDEN if self.position == "mid" else Seam.FFN
        return {"mlp": (mlp,), "msa": (Seam.MIXED,), "both": (mlp, Seam.MIXED)}[self.at]

    def takes(self, site: Site) -> bool:
        return chosen(site, self.layers, default="all" if self.scaled else "upper")

    def replaces(self, preserve: bool) -> bool:
        return False

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        if preserve and not self.scaled:
            raise GlocalError(
                "CB halves every token, so it cannot preserve the host. CB_S can: ContextBroadcast(scaled=True)."
            )
        new: nn.Module = Broadcast(site.dim if self.scaled else None)
        if site.sets is not None:
            new = SetBroadcast(new, self.tokens, site.sets)
        elif self.tokens != "all":
            raise GlocalError(
                f"ContextBroadcast's tokens is {self.tokens!r}, but this host has no text tokens. Leave it at 'all'."
            )
        if self.position == "front" and site.tail:
            raise GlocalError(
                f"ContextBroadcast cannot reach the front of the network that ends at {site.path}. Use position 'end'."
            )
        new = site.dress(new, old)
        front = self.position == "front" and site.seam is Seam.FFN
        return Before(old, new) if front or site.before else After(old, new)
