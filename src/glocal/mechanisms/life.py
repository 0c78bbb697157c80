"""LIFE: queries, keys and values see their neighbourhood at several scales.

"LIFE: A Flexible and Efficient Module for Incorporating Local Information into Vision Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from glocal.errors import GlocalError
from glocal.kernels.depthwise import depthwise, depthwise_groups, depthwise_groups_in_place, lay_taps
from glocal.kernels.dispatch import bare, overwrites, pays
from glocal.kernels.multi_scale import multi_scale, multi_scale_in_place
from glocal.lattice import Lattice
from glocal.site import Layers, Seam, Site, chosen
from glocal.wrappers import FirstOfThree, LaterOfThree, OnLattice, Wrapper


class MultiScaleQKV(nn.Module):
    """Project tokens to queries, keys and values through a chain of growing receptive fields (Eq. 3-6).

    Scale i gives 3 * widths[i] channels, its share of q, k and v. Patch tokens pass a depth-wise convolution and a
    pointwise one per scale; auxiliary tokens pass the pointwise ones alone. Returns (B, N, 3 * sum(widths)).
    """

    def __init__(
        self, dim: int, widths: Sequence[int], kernels: Sequence[int], *, bias: bool = True, aux_key_first: bool = False
    ) -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.aux_key_first = aux_key_first  # released code: an auxiliary token's key repeats scale 1
        inputs = (dim, *(3 * width for width in widths[:-1]))
        self.depthwise = nn.ModuleList(
            nn.Conv2d(c, c, k, padding=k // 2, groups=c, bias=False) if k > 1 else nn.Identity()
            for c, k in zip(inputs, kernels, strict=True)
        )
        # The first scale's projection has a bias, the others none, as released.
        self.pointwise = nn.ModuleList(
            nn.Linear(c, 3 * width, bias=bias and i == 0)
            for i, (c, width) in enumerate(zip(inputs, widths, strict=True))
        )
        first = cast("nn.Linear", self.pointwise[0])
        trunc_normal_(first.weight, std=0.02)
        if first.bias is not None:
            nn.init.zeros_(first.bias)

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        fusable = pays(tokens) and not (self.aux_key_first and lattice.prefix)
        if fusable or overwrites(tokens):
            weights = self._weights()
            if weights is not None and fusable:
                return multi_scale(tokens, *weights, lattice)
            if weights is not None:
                return self._released(multi_scale_in_place(tokens, *weights, lattice), lattice.prefix).flatten(2)
        images, count, _ = tokens.shape
        scales: list[Tensor] = []
        for conv, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            if isinstance(conv, nn.Conv2d):
                tokens = depthwise(tokens, conv.weight, lattice)
            tokens = pointwise(tokens)  # (B, N, 3 * width)
            scales.append(tokens.reshape(images, count, 3, -1))
        # (B, N, 3, width) of each scale side by side within q, k and v
        return self._released(torch.cat(scales, dim=-1), lattice.prefix).flatten(2)

    def _weights(self) -> tuple[list[Tensor | None], list[Tensor], Tensor | None] | None:
        """Give taps, matrices and bias; None if there is more to the layers: other kinds, or hooks that listen."""
        taps: list[Tensor | None] = []
        matrices: list[Tensor] = []
        for conv, linear in zip(self.depthwise, self.pointwise, strict=True):
            if type(linear) is not nn.Linear or type(conv) not in (nn.Conv2d, nn.Identity) or not bare(conv, linear):
                return None
            taps.append(cast("Tensor", conv.weight) if type(conv) is nn.Conv2d else None)
            matrices.append(linear.weight)
        return taps, matrices, cast("nn.Linear", self.pointwise[0]).bias

    def _released(self, qkv: Tensor, prefix: int) -> Tensor:
        """Give auxiliary tokens the key of the released code, if asked for; `qkv` is (B, N, 3, sum of widths)."""
        if not (self.aux_key_first and prefix):
            return qkv
        key = qkv[:, :prefix, 1, : self.widths[0]].repeat(1, 1, len(self.widths))  # (B, P, sum of widths)
        aux = torch.stack((qkv[:, :prefix, 0], key, qkv[:, :prefix, 2]), dim=2)
        return torch.cat((aux, qkv[:, prefix:]), dim=1)

    def fold(self) -> None:
        """Lay the taps as the kernel reads them."""
        for conv in self.depthwise:
            if isinstance(conv, nn.Conv2d):
                lay_taps(conv.weight)

    @torch.no_grad()
    def start_from(self, qkv: nn.Linear) -> None:
        """Let scale 1 begin as the host's own projection to the channels it feeds."""
        first = cast("nn.Linear", self.pointwise[0])
        if not isinstance(self.depthwise[0], nn.Identity) or qkv.out_features != 3 * sum(self.widths):
            return
        width = self.widths[0]
        rows = [third[:width] for third in qkv.weight.chunk(3)]
        first.weight.copy_(torch.cat(rows))
        if first.bias is not None and qkv.bias is not None:
            first.bias.copy_(torch.cat([third[:width] for third in qkv.bias.chunk(3)]))


class DeltaConv(nn.Module):
    """The weight of a depth-wise convolution: starts as the identity, and returns to it when a host initialises."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, kernel, kernel))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.dirac_(self.weight, groups=self.weight.shape[0])

    init_weights = reset_parameters  # timm's hook; a plain Conv2d would be drawn at random

    def fold(self) -> None:
        """Lay the taps as the kernel reads them."""
        lay_taps(self.weight)


class LocalQKV(Wrapper):
    """Keep the host's projection and convolve its patch tokens, each share of channels at its own scale.

    `parts` is 3 where one projection gives q, k and v, and 1 where each has its own.
    """

    def __init__(self, host: nn.Module, widths: Sequence[int], kernels: Sequence[int], parts: int = 3) -> None:
        super().__init__(host)
        self.widths = tuple(widths)
        self.parts = parts
        # A 1x1 depth-wise convolution would be a gain that the projection has already.
        self.depthwise = nn.ModuleList(
            DeltaConv(parts * width, kernel) if kernel > 1 else nn.Identity()
            for width, kernel in zip(widths, kernels, strict=True)
        )

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        weights = [conv.weight if isinstance(conv, DeltaConv) else None for conv in self.depthwise]
        own = overwrites(tokens) and type(self.host) is nn.Linear and bare(self.host, *self.depthwise)
        convolve = depthwise_groups_in_place if own else depthwise_groups
        return convolve(self.host(tokens), weights, self.widths, self.parts, lattice)


@dataclass(frozen=True)
class LIFE:
    """Graft `MultiScaleQKV` in place of the projection to queries, keys and values."""

    kernels: tuple[int, ...] = (1, 3, 5)
    """Kernel of each scale; odd numbers."""
    widths: tuple[int, ...] | None = None
    """Channels of q (and k, and v) at each scale; equal shares when not given."""
    aux_key: Literal["scales", "first"] = "scales"
    """Key of auxiliary tokens: every scale (the paper), or the first scale repeated (the released code)."""
    layers: Layers | None = None

    def __post_init__(self) -> None:
        if not self.kernels or any(k < 1 or k % 2 == 0 for k in self.kernels):
            raise GlocalError(f"LIFE's kernels are {self.kernels}; each must be odd, as in (1, 3, 5).")
        if self.aux_key not in ("scales", "first"):
            raise GlocalError(f"LIFE's aux_key is {self.aux_key!r}; use 'scales' (the paper) or 'first' (as released).")
        if self.widths is not None and len(self.widths) != len(self.kernels):
            raise GlocalError(
                f"LIFE has {len(self.kernels)} kernels but {len(self.widths)} widths; give one width each."
            )

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.QKV,) if self.widths is None else (Seam.QKV, Seam.ATTENTION)

    def takes(self, site: Site) -> bool:
        # Widths other than the host's change heads and output projection too: the whole attention is grafted then.
        widens = self.widths is not None and sum(self.widths) != site.dim
        return site.seam is (Seam.ATTENTION if widens else Seam.QKV) and chosen(site, self.layers)

    def replaces(self, preserve: bool) -> bool:
        return True

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        if site.seam is Seam.ATTENTION:
            return self._widen(site, old, preserve)
        scales = len(self.kernels)
        widths = self.widths or (_uneven(site.dim, scales) if preserve else self._even(site.dim))
        return self._qkv(site, widths, old, preserve)

    def _qkv(self, site: Site, widths: tuple[int, ...], old: nn.Module, preserve: bool) -> nn.Module:
        assert site.cell is not None
        handover = site.handover
        if preserve:
            return OnLattice(LocalQKV(old, widths, self.kernels, 3 if handover is None else 1), site.cell)
        if handover is not None and site.part > 0:
            return LaterOfThree(handover, site.part)
        if self.aux_key == "first" and len(set(widths)) > 1:
            raise GlocalError(f"LIFE's aux_key='first' repeats scale 1, so its widths {widths} must be equal.")
        new = MultiScaleQKV(site.dim, widths, self.kernels, aux_key_first=self.aux_key == "first")
        start = old if handover is None else handover.whole()
        if isinstance(start, nn.Linear):
            new.start_from(start)
        whole = OnLattice(new, site.cell)
        return whole if handover is None else FirstOfThree(whole, handover)

    def _even(self, dim: int) -> tuple[int, ...]:
        scales = len(self.kernels)
        if dim % scales:
            raise GlocalError(
                f"LIFE shares {dim} channels among {scales} scales; {dim} is not a multiple of {scales}. "
                f"Give unequal widths, such as widths={_uneven(dim, scales)}, or preserve=True; "
                f"for T2T-ViT-12 the paper uses 252 channels."
            )
        return (dim // scales,) * scales

    def _widen(self, site: Site, old: nn.Module, preserve: bool) -> nn.Module:
        assert self.widths is not None
        total = sum(self.widths)
        if preserve or site.resize is None:
            reason = "preserving the host keeps" if preserve else f"{type(old).__name__} is fixed at"
            raise GlocalError(
                f"LIFE's widths {self.widths} add up to {total}, but {reason} {site.dim} channels. "
                f"Use widths that add up to {site.dim}, such as {_uneven(site.dim, len(self.kernels))}."
            )
        if total % site.heads:
            raise GlocalError(
                f"LIFE's widths {self.widths} add up to {total}, which {site.heads} heads cannot share. "
                f"Use a multiple of {site.heads}."
            )
        wide = site.resize(old, site.heads, total // site.heads)
        wide.qkv = self._qkv(site, self.widths, cast("nn.Module", wide.qkv), preserve)
        return wide


def _uneven(dim: int, scales: int) -> tuple[int, ...]:
    return tuple(len(share) for share in torch.arange(dim).tensor_split(scales))
