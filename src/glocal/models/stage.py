"""A stage of a pyramid: merge a map into tokens, place them, run blocks that are told where the tokens sit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import LayerNorm2d, Mlp, trunc_normal_
from timm.layers.drop import DropPath
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from glocal.errors import LatticeError
from glocal.lattice import Lattice, fill_patches
from glocal.models.positions import Grid, RelativeAttention, resize_positions


class ConvMerge(nn.Module):
    """Merge patches by a convolution as wide as its stride, then a LayerNorm; sides are padded to fill patches."""

    def __init__(self, dim: int, out_dim: int, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(dim, out_dim, patch, stride=patch)
        self.norm = LayerNorm2d(out_dim, eps=1e-5)

    def forward(self, patch_map: Tensor) -> Tensor:
        return self.norm(self.proj(fill_patches(patch_map, self.patch)))


class Block(nn.Module):
    """A pre-norm transformer block that is told its lattice; without attention it is LIT's MLP block."""

    def __init__(
        self,
        dim: int,
        mlp_ratio: float,
        attn: nn.Module | None,
        *,
        wants_size: bool = False,
        eps: float = 1e-6,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.wants_size = wants_size  # whether the attention asks for the size of the map
        self.attn = attn
        if attn is not None:
            self.norm1 = nn.LayerNorm(dim, eps=eps)
            self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        if self.attn is not None:
            size = ((lattice.height, lattice.width),) if self.wants_size else ()
            tokens = tokens + self.drop_path1(self.attn(self.norm1(tokens), *size))
        return tokens + self.drop_path2(self.mlp(self.norm2(tokens)))


class Stage(nn.Module):
    """Merge a map into fewer tokens, add positions and perhaps a class token, and run blocks on them."""

    def __init__(
        self,
        merge: nn.Module,
        blocks: Sequence[Block],
        dim: int,
        grid: Grid,
        *,
        positions: bool,
        class_token: bool = False,
        pos_drop: float = 0.0,
        least: int = 1,
    ) -> None:
        super().__init__()
        self.dim, self.grid, self.prefix = dim, grid, int(class_token)
        self.least = least  # the smallest side of a map that the blocks can read
        self.merge = merge
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, self.prefix + grid[0] * grid[1], dim)) if positions else None
        self.pos_drop = nn.Dropout(pos_drop)
        self.blocks = nn.ModuleList(blocks)
        self.grad_checkpointing = False
        for table in (self.cls_token, self.pos_embed):
            if table is not None:
                trunc_normal_(table, std=0.02)
        self.register_load_state_dict_pre_hook(_without_class_token)

    def forward(self, patch_map: Tensor) -> tuple[Tensor, Lattice]:
        x = self.merge(patch_map)
        lattice = Lattice(x.shape[-2], x.shape[-1], self.prefix)
        self._check(lattice)
        aux = x.new_empty(0) if self.cls_token is None else self.cls_token.expand(x.shape[0], -1, -1)
        tokens = lattice.join(aux, x)
        if self.pos_embed is not None:
            tokens = tokens + resize_positions(self.pos_embed, self.grid, lattice)
        tokens = self.pos_drop(tokens)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, lattice) if self.grad_checkpointing else block(tokens, lattice)
        return tokens, lattice

    def _check(self, lattice: Lattice) -> None:
        if not torch.compiler.is_compiling() and min(lattice.height, lattice.width) < self.least:
            raise LatticeError(
                f"this stage's attention shrinks its map by {self.least}, but the map is "
                f"{lattice.height}x{lattice.width}. Use larger images; PVT's own ratios need 32 pixels a side."
            )

    @torch.no_grad()
    def resize(self, grid: Grid) -> None:
        """Make another map size the usual one: every table is resampled to it."""
        if self.pos_embed is not None:
            self.pos_embed = nn.Parameter(
                resize_positions(self.pos_embed, self.grid, Lattice(*grid, self.prefix)).clone()
            )
        for module in self.modules():
            if isinstance(module, RelativeAttention):
                module.resize(grid)
        self.grid = grid


def _without_class_token(stage: Stage, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a checkpoint with a class token load into a stage without one, as dense tasks use it."""
    if stage.cls_token is None and state.pop(f"{prefix}cls_token", None) is not None and stage.pos_embed is not None:
        state[f"{prefix}pos_embed"] = state[f"{prefix}pos_embed"][:, 1:]


def grids(img_size: int | Grid, stages: int, patch: int = 4) -> list[Grid]:
    """Tell the map size of each stage for an image size."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    sides = [patch * 2**s for s in range(stages)]
    return [(-(-height // side), -(-width // side)) for side in sides]


def drop_paths(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Let the drop path grow linearly over all blocks, listed by stage."""
    return [each.tolist() for each in torch.linspace(0, rate, sum(depths), device="cpu").split(list(depths))]
