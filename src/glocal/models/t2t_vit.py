"""T2T-ViT: a tokeniser that gathers neighbours step by step, then narrow transformer blocks.

Yuan et al., "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.layers.attention import Attention
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.lattice import Lattice
from glocal.models.classifier import Classifier, start
from glocal.models.positions import Grid, resize_positions, sinusoid
from glocal.models.registry import register
from glocal.models.stage import Block, drop_paths
from glocal.models.tokens_to_token import SMALL_SPLITS, SPLITS, Split, TokensToToken


class T2TViT(Classifier):
    """T2T-ViT, at any image size; its fixed sinusoid of positions is made for `img_size`.

    `performer` chooses the tokeniser's attention; `small` its soft splits for images of 32 or 64 px.
    """

    def __init__(
        self,
        img_size: int | Grid = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        performer: bool = True,
        small: bool = False,
        splits: Sequence[Split] | None = None,
        token_dim: int = 64,
        embed_dim: int = 256,
        depth: int = 7,
        num_heads: int = 4,
        mlp_ratio: float = 2.0,
        idle_norm: bool = False,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(embed_dim, 1, num_classes=num_classes, global_pool=global_pool, eps=1e-5, drop_rate=drop_rate)
        self.in_chans = in_chans
        self.tokens_to_token = TokensToToken(
            embed_dim,
            channels=in_chans,
            token_dim=token_dim,
            performer=performer,
            splits=splits or (SMALL_SPLITS if small else SPLITS),
            idle_norm=idle_norm,
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.grid = self._grid(img_size)
        positions = sinusoid(1 + self.grid[0] * self.grid[1], embed_dim)
        self.pos_embed = nn.Parameter(positions, requires_grad=False)
        self.pos_drop = nn.Dropout(pos_drop_rate)
        rates: dict[str, Any] = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}

        def block(drop: float) -> Block:
            attention = Attention(embed_dim, num_heads, **rates)
            return Block(embed_dim, mlp_ratio, attention, eps=1e-5, proj_drop=proj_drop_rate, drop_path=drop)

        self.blocks = nn.ModuleList(block(drop) for drop in drop_paths(drop_path_rate, [depth])[0])
        stride = 1
        for _, step, _ in self.tokens_to_token.splits:
            stride *= step
        self.feature_info = [{"num_chs": embed_dim, "reduction": stride, "module": f"blocks.{i}"} for i in range(depth)]
        self.grad_checkpointing = False
        trunc_normal_(self.cls_token, std=0.02)
        self.apply(start)

    def embed(self, image: Tensor) -> tuple[Tensor, Lattice]:
        """Return the tokens that enter the blocks, and where they sit."""
        tokens, patches = self.tokens_to_token(image)
        lattice = Lattice(patches.height, patches.width, self.num_prefix_tokens)
        tokens = torch.cat((self.cls_token.expand(tokens.shape[0], -1, -1), tokens), dim=1)
        return self.pos_drop(tokens + resize_positions(self.pos_embed, self.grid, lattice)), lattice

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last tokens, normalised."""
        tokens, lattice = self.embed(x)
        for block in self.blocks:
            tokens = self._run(block, tokens, lattice)
        return self.norm(tokens)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Any] | tuple[Tensor, list[Any]]:
        """Return the maps, or tokens, that leave chosen blocks, as timm's models do."""
        if output_fmt not in ("NCHW", "NLC"):
            raise GlocalError(f"output_fmt is {output_fmt!r}; use 'NCHW' or 'NLC'.")
        taken, deepest = feature_take_indices(len(self.blocks), indices)
        tokens, lattice = self.embed(x)
        found: list[Any] = []
        for i, block in enumerate(self.blocks[: deepest + 1] if stop_early and intermediates_only else self.blocks):
            tokens = self._run(block, tokens, lattice)
            if i in taken:
                aux, patch_map = lattice.split(self.norm(tokens) if norm else tokens)
                feature = patch_map.contiguous() if output_fmt == "NCHW" else patch_map.flatten(2).transpose(1, 2)
                found.append((feature, aux) if return_prefix_tokens else feature)
        return found if intermediates_only else (self.norm(tokens), found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what chosen intermediates do not need."""
        taken, deepest = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: deepest + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def set_input_size(self, img_size: int | Grid) -> None:
        """Make another image size the usual one; any other still works, by resampling on the way."""
        grid = self._grid(img_size)
        table = resize_positions(self.pos_embed, self.grid, Lattice(*grid, self.num_prefix_tokens))
        self.pos_embed, self.grid = nn.Parameter(table.detach().clone(), requires_grad=False), grid

    def no_weight_decay(self) -> set[str]:
        """Name the parameters that want no weight decay."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Group parameters by depth for layer-wise rates."""
        return {
            "stem": r"^cls_token|pos_embed|tokens_to_token",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks during backward instead of storing their activations."""
        self.grad_checkpointing = enable

    def _run(self, block: nn.Module, tokens: Tensor, lattice: Lattice) -> Tensor:
        return checkpoint(block, tokens, lattice) if self.grad_checkpointing else block(tokens, lattice)

    def _grid(self, img_size: int | Grid) -> Grid:
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        return self.tokens_to_token.grid(height, width)


def _wide(dim: int, depth: int, heads: int) -> dict[str, Any]:
    return {"embed_dim": dim, "depth": depth, "num_heads": heads, "mlp_ratio": 3.0}


SHAPES: dict[str, dict[str, Any]] = {
    "t2t_vit_7": {"depth": 7},
    "t2t_vit_10": {"depth": 10},
    "t2t_vit_12": {"depth": 12},
    "t2t_vit_12_252": {"depth": 12, "embed_dim": 252},  # LIFE's three scales share the width
    "t2t_vit_12_32": {"depth": 12, "img_size": 32, "small": True},
    "t2t_vit_12_252_32": {"depth": 12, "embed_dim": 252, "img_size": 32, "small": True},
    "t2t_vit_14": _wide(384, 14, 6),
    "t2t_vit_19": _wide(448, 19, 7),
    "t2t_vit_24": _wide(512, 24, 8),
    "t2t_vit_t_14": {**_wide(384, 14, 6), "performer": False},
    "t2t_vit_t_19": {**_wide(448, 19, 7), "performer": False},
    "t2t_vit_t_24": {**_wide(512, 24, 8), "performer": False},
}
register(__name__, T2TViT, SHAPES, out_indices=3)
