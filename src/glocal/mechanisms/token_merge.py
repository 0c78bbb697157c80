"""LIT's second idea: Deformable Token Merging, where each merged token chooses the tokens it merges.

Pan et al., "Less is More: Pay Less Attention in Vision Transformers".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.errors import GlocalError
from glocal.kernels.deform import deform_conv2d, sample_taps
from glocal.lattice import fill_patches
from glocal.site import Seam, Site


class DeformableConv(nn.Module):
    """A convolution whose taps move by learned offsets (Eq. 7).

    The offset predictor has the same kernel, stride and padding, two numbers (dy, dx) per tap, and starts at zero,
    where this is a plain convolution. Offsets learn at a hundredth of the rate (§4.1).
    """

    lr_scale = {"offset": 0.01}  # noqa: RUF012  read by the optimiser

    def __init__(
        self,
        dim: int,
        out_dim: int,
        kernel: int = 2,
        stride: int = 2,
        padding: int = 0,
        groups: int = 1,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_dim, dim // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out_dim)) if bias else None
        self.offset = ZeroConv(dim, 2 * kernel * kernel, kernel, stride, padding)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, patch_map: Tensor) -> Tensor:
        return deform_conv2d(patch_map, self.offset(patch_map), self.weight, self.bias, self.stride, self.padding)

    @classmethod
    def start_from(cls, conv: nn.Conv2d) -> DeformableConv:
        """Take over a plain convolution, weights and all."""
        new = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size[0],
            conv.stride[0],
            int(conv.padding[0]),
            conv.groups,
            bias=conv.bias is not None,
        )
        new.weight, new.bias = conv.weight, conv.bias
        return new


class ZeroConv(nn.Module):
    """A convolution that starts at zero and returns there when a host initialises its weights."""

    def __init__(self, dim: int, out_dim: int, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_dim, dim, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    init_weights = reset_parameters

    def forward(self, patch_map: Tensor) -> Tensor:
        return F.conv2d(patch_map, self.weight, self.bias, self.stride, self.padding)


class DeformableMerge(nn.Module):
    """Merge each 2x2 tokens into one: GELU(BN(deformable convolution)) (Eq. 8). Odd maps are padded below and right."""

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = DeformableConv(dim, out_dim)
        self.norm = nn.BatchNorm2d(out_dim)
        self.act = nn.GELU()

    def forward(self, patch_map: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(fill_patches(patch_map, 2))))

    @torch.no_grad()
    def fold(self) -> None:
        """Merge BatchNorm into the deformable convolution: sampling and projection are linear."""
        if isinstance(self.norm, nn.BatchNorm2d):
            scale, shift = batch_norm_line(self.norm)
            bias = torch.zeros_like(shift) if self.conv.bias is None else self.conv.bias
            self.conv.weight = nn.Parameter(self.conv.weight * scale[:, None, None, None])
            self.conv.bias = nn.Parameter(bias * scale + shift)
            self.norm = nn.Identity()


class DeformableGather(nn.Module):
    """Gather each 2x2 tokens side by side, moved by learned offsets, then hand them to the host's own layers."""

    lr_scale = {"offset": 0.01}  # noqa: RUF012  read by the optimiser

    def __init__(self, dim: int, finish: Sequence[tuple[str, nn.Module]], *, columns_first: bool) -> None:
        super().__init__()
        self.offset = ZeroConv(dim, 8, 2, 2, 0)
        for name, module in finish:  # under the host's own names, so that its checkpoints load
            self.add_module(name, module)
        self.order = tuple(name for name, _ in finish)
        self.columns_first = columns_first

    def forward(self, patch_map: Tensor) -> Tensor:
        x = fill_patches(patch_map, 2)
        x = sample_taps(x, self.offset(x), kernel=2, stride=2, padding=0)  # (B, C, taps, H / 2, W / 2)
        if self.columns_first:
            x = x.unflatten(2, (2, 2)).transpose(2, 3).flatten(2, 3)  # an index would be sent to a GPU, which waits
        x = x.permute(0, 3, 4, 2, 1).flatten(3)  # (B, H / 2, W / 2, taps * C)
        for name in self.order:
            x = self.get_submodule(name)(x)
        return x.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class DTM:
    """Graft `DeformableMerge` in place of a hierarchical host's token merging."""

    stages: tuple[int, ...] | None = None
    """Stages whose entrance merges deformably, counted from 0; all by default."""

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        return (Seam.MERGE,)

    def takes(self, site: Site) -> bool:
        if outside := [stage for stage in self.stages or () if not 0 < stage < site.stages]:
            raise GlocalError(
                f"no tokens merge before stage {outside[0]}; DTM's stages run from 1 to {site.stages - 1}."
            )
        return self.stages is None or site.stage in self.stages

    def replaces(self, preserve: bool) -> bool:
        return True

    def graft(self, site: Site, old: nn.Module, *, preserve: bool) -> nn.Module:
        assert site.out_dim is not None and site.merging is not None
        if not preserve:
            return site.dress(DeformableMerge(site.dim, site.out_dim), old)
        if site.merging.conv is not None:
            conv = old.get_submodule(site.merging.conv)
            assert isinstance(conv, nn.Conv2d)
            old.set_submodule(site.merging.conv, DeformableConv.start_from(conv))
            return old
        finish = [(name, old.get_submodule(name)) for name in site.merging.finish]
        return site.dress(DeformableGather(site.dim, finish, columns_first=site.merging.columns_first), old)


def batch_norm_line(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Write a BatchNorm at inference as x * scale + shift."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale
