"""LIT: a pyramid without attention in its early stages, whose tokens merge deformably.

Pan et al., "Less is More: Pay Less Attention in Vision Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.layers.attention import Attention
from timm.models.swin_transformer import PatchMerging
from torch import Tensor, nn

from glocal.lattice import fill_patches
from glocal.mechanisms.token_merge import DeformableMerge
from glocal.models.positions import Grid, RelativeAttention
from glocal.models.pyramid import Pyramid
from glocal.models.registry import register
from glocal.models.stage import Block, ConvMerge, Stage, drop_paths, grids


class GatherMerge(PatchMerging):
    """Swin's uniform merging, on a (B, C, H, W) map: each 2x2 tokens side by side, LayerNorm, linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(fill_patches(x, 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class LIT(Pyramid):
    """LIT, at any image size; its position tables are made for `img_size`.

    `relative` chooses between LIT-S/M/B (relative positions, mean of tokens) and LIT-Ti (absolute positions, a class
    token in the last stage). Without `deformable` it is LIT*: merging as in the pyramid it is compared with, Swin's
    or PVT's. `feature_norms` are the stages whose maps pass a LayerNorm before a dense head takes them.
    """

    def __init__(
        self,
        img_size: int | Grid = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        depths: Sequence[int] = (2, 2, 6, 2),
        dims: Sequence[int] = (96, 192, 384, 768),
        heads: Sequence[int] = (3, 6, 12, 24),
        mlp_ratios: Sequence[float] = (4, 4, 4, 4),
        attention_stages: Sequence[int] = (2, 3),
        relative: bool = True,
        deformable: bool = True,
        class_token: bool | None = None,
        feature_norms: Sequence[int] = (),
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        class_token = not relative if class_token is None else class_token
        eps = 1e-5 if relative else 1e-6
        drops, sizes = drop_paths(drop_path_rate, depths), grids(img_size, len(depths))
        rates: dict[str, Any] = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}

        def attention(s: int) -> nn.Module | None:
            if s not in attention_stages:
                return None
            if relative:
                return RelativeAttention(dims[s], heads[s], sizes[s], **rates)
            return Attention(dims[s], heads[s], qkv_bias=True, **rates)

        def merge(s: int) -> nn.Module:
            if s == 0:
                return ConvMerge(in_chans, dims[0], 4)
            if deformable:
                return DeformableMerge(dims[s - 1], dims[s])
            return GatherMerge(dims[s - 1], dims[s]) if relative else ConvMerge(dims[s - 1], dims[s])

        def stage(s: int) -> Stage:
            manner: dict[str, Any] = {"wants_size": relative, "eps": eps, "proj_drop": proj_drop_rate}
            blocks = [Block(dims[s], mlp_ratios[s], attention(s), drop_path=drop, **manner) for drop in drops[s]]
            last = class_token and s == len(depths) - 1
            positions = {"positions": not relative, "class_token": last, "pos_drop": pos_drop_rate}
            return Stage(merge(s), blocks, dims[s], sizes[s], **positions)

        super().__init__(
            [stage(s) for s in range(len(depths))],
            num_classes=num_classes,
            global_pool=global_pool or ("token" if class_token else "avg"),
            eps=eps,
            drop_rate=drop_rate,
            in_chans=in_chans,
            feature_norms=feature_norms,
        )


SHAPES: dict[str, dict[str, Any]] = {
    "lit_tiny": {
        "depths": (3, 4, 6, 3),
        "dims": (64, 128, 320, 512),
        "heads": (1, 2, 5, 8),
        "mlp_ratios": (8, 8, 4, 4),
        "relative": False,
    },
    "lit_small": {},
    "lit_medium": {"depths": (2, 2, 18, 2)},
    "lit_base": {"depths": (2, 2, 18, 2), "dims": (128, 256, 512, 1024), "heads": (4, 8, 16, 32)},
}
# LIT* merges uniformly (Table 3).
SHAPES |= {f"{name}_star": {**shape, "deformable": False} for name, shape in SHAPES.items()}
register(__name__, LIT, SHAPES, first_conv="stages.0.merge.proj", out_indices=(0, 1, 2, 3))
