"""PVT v1: a pyramid whose attention reads a shrunken map, with a class token in the last stage.

Wang et al., "Pyramid Vision Transformer". LIT's Table 5 takes its attention apart: `standard` and `attention_stages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timm.layers.attention import Attention
from timm.models.pvt_v2 import Attention as ReducedAttention
from torch import nn

from glocal.models.positions import Grid
from glocal.models.pyramid import Pyramid
from glocal.models.registry import register
from glocal.models.stage import Block, ConvMerge, Stage, drop_paths, grids


class PyramidVisionTransformer(Pyramid):
    """PVT v1, at any image size; its position tables are made for `img_size`.

    `standard` gives every stage plain attention over the whole map; `attention_stages` leaves attention out elsewhere.
    """

    def __init__(
        self,
        img_size: int | Grid = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        depths: Sequence[int] = (3, 4, 6, 3),
        dims: Sequence[int] = (64, 128, 320, 512),
        heads: Sequence[int] = (1, 2, 5, 8),
        mlp_ratios: Sequence[float] = (8, 8, 4, 4),
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        standard: bool = False,
        attention_stages: Sequence[int] = (0, 1, 2, 3),
        class_token: bool = True,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        drops, sizes = drop_paths(drop_path_rate, depths), grids(img_size, len(depths))
        rates: dict[str, Any] = {"attn_drop": attn_drop_rate, "proj_drop": proj_drop_rate}

        def attention(s: int) -> nn.Module | None:
            if s not in attention_stages:
                return None
            if standard:
                return Attention(dims[s], heads[s], qkv_bias=True, **rates)
            return ReducedAttention(dims[s], heads[s], sr_ratios[s], **rates)

        def stage(s: int) -> Stage:
            blocks = [
                Block(
                    dims[s],
                    mlp_ratios[s],
                    attention(s),
                    wants_size=not standard,
                    proj_drop=proj_drop_rate,
                    drop_path=drop,
                )
                for drop in drops[s]
            ]
            merge = ConvMerge(dims[s - 1], dims[s]) if s else ConvMerge(in_chans, dims[0], 4)
            last = class_token and s == len(depths) - 1
            reads = {"least": 1 if standard or s not in attention_stages else sr_ratios[s], "pos_drop": pos_drop_rate}
            return Stage(merge, blocks, dims[s], sizes[s], positions=True, class_token=last, **reads)

        super().__init__(
            [stage(s) for s in range(len(depths))],
            num_classes=num_classes,
            global_pool=global_pool or ("token" if class_token else "avg"),
            eps=1e-6,
            drop_rate=drop_rate,
            in_chans=in_chans,
        )


SHAPES: dict[str, dict[str, Any]] = {
    "pvt_tiny": {"depths": (2, 2, 2, 2)},
    "pvt_small": {},
    "pvt_medium": {"depths": (3, 4, 18, 3)},
    "pvt_large": {"depths": (3, 8, 27, 3)},
    "pvt_small_msa": {"standard": True},  # LIT, Table 5
}
register(__name__, PyramidVisionTransformer, SHAPES, first_conv="stages.0.merge.proj", out_indices=(0, 1, 2, 3))
