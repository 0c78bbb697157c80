"""Positions that fit any lattice: learned tables are resampled, relative biases too."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from timm.layers import trunc_normal_
from timm.layers.attention import Attention
from timm.layers.pos_embed_rel import gen_relative_position_index
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from glocal.lattice import Lattice, is_open

Grid = tuple[int, int]


def resize_positions(table: Tensor, grid: Grid, lattice: Lattice) -> Tensor:
    """Bring a (1, N, C) table of positions on `grid` to another lattice; its prefix rows stay as they are."""
    wanted = (lattice.height, lattice.width)
    if not is_open(*wanted) and wanted == grid:
        return table
    aux, patch_map = Lattice(*grid, lattice.prefix).split(table)
    resized = F.interpolate(patch_map.float(), size=wanted, mode="bilinear").to(table.dtype)
    return lattice.join(aux, resized)


def resize_bias(table: Tensor, grid: Grid, wanted: Grid) -> Tensor:
    """Bring a ((2H - 1)(2W - 1), heads) table of relative biases on `grid` to another one, bicubically."""
    shape = (2 * grid[0] - 1, 2 * grid[1] - 1)
    bias_map = table.float().T.unflatten(1, shape)[None]  # (1, heads, 2H - 1, 2W - 1)
    resized = F.interpolate(bias_map, size=(2 * wanted[0] - 1, 2 * wanted[1] - 1), mode="bicubic")
    return resized[0].flatten(1).T.to(table.dtype)


class RelativeAttention(Attention):
    """Attention with a learned bias for each head and each step (dy, dx) between two tokens of the whole map."""

    def __init__(self, dim: int, heads: int, grid: Grid, *, attn_drop: float = 0.0, proj_drop: float = 0.0) -> None:
        super().__init__(dim, heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop)
        self.grid = grid
        steps = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.empty(steps, heads))
        self.register_buffer("relative_position_index", gen_relative_position_index(grid), persistent=False)
        trunc_normal_(self.relative_position_bias_table, std=0.02)

    def bias(self, size: Grid) -> Tensor:
        """Return the (1, heads, N, N) bias of a map of this size."""
        table, index = self.relative_position_bias_table, self.get_buffer("relative_position_index")
        if is_open(*size) or size != self.grid:
            # Made where it is needed: sent from the CPU, it would make a GPU wait at every pass.
            table, index = resize_bias(table, self.grid, size), gen_relative_position_index(size, device=table.device)
        return table[index].permute(2, 0, 1)[None]

    @torch.no_grad()
    def resize(self, grid: Grid) -> None:
        """Make another map size the usual one."""
        self.relative_position_bias_table = nn.Parameter(
            resize_bias(self.relative_position_bias_table, self.grid, grid)
        )
        index = gen_relative_position_index(grid).to(self.relative_position_bias_table.device)
        self.register_buffer("relative_position_index", index, persistent=False)
        self.grid = grid

    def forward(self, x: Tensor, feat_size: Grid) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        # In rows without gaps: fused attention takes no other mask.
        bias = self.bias(feat_size).to(x.dtype).contiguous()
        with _learning(bias):
            return super().forward(x, attn_mask=bias)


def _learning(mask: Tensor) -> AbstractContextManager[object]:
    """Keep cuDNN's attention, a large GPU's first choice, from a mask that learns: it hands no gradient to one.

    The choice is the whole process's, so it is left alone where nothing learns and where cuDNN's is not asked anyway.
    """
    learns = mask.is_cuda and torch.is_grad_enabled() and mask.requires_grad
    if not learns or not _cudnn_is_asked():
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


@torch.compiler.assume_constant_result  # a graph cannot ask
def _cudnn_is_asked() -> bool:
    return torch.backends.cuda.cudnn_sdp_enabled()


def sinusoid(count: int, dim: int) -> Tensor:
    """Make the fixed (1, count, dim) table of sines (even channels) and cosines (odd ones)."""
    channel = torch.arange(dim, dtype=torch.float64)
    angle = torch.arange(count, dtype=torch.float64)[:, None] / 10000 ** (2 * (channel // 2) / dim)
    return torch.where(channel.long() % 2 == 0, angle.sin(), angle.cos())[None].float()
