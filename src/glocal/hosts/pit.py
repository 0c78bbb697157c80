"""timm's PiT: ViT blocks in stages, with a class token that pools beside the map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.models.pit import PoolingVisionTransformer
from torch import Tensor, nn

from glocal.hosts.feed_forward import feed_forward, not_plain
from glocal.hosts.vit import attention_sites
from glocal.site import LatticeCell, Merging, Seam, Site


class PoolBeside(nn.Module):
    """Merge the map with a new module and the class token with the host's own linear layer."""

    def __init__(self, merge: nn.Module, fc: nn.Module) -> None:
        super().__init__()
        self.merge = merge
        self.fc = fc

    def forward(self, x: Tensor, cls_token: Tensor) -> tuple[Tensor, Tensor]:
        return self.merge(x), self.fc(cls_token)


def sites(host: PoolingVisionTransformer) -> Iterator[Site]:
    """List what the host offers."""
    stages: list[Any] = list(host.transformers.children())
    depth, layer = sum(len(stage.blocks) for stage in stages), 0
    dims = [host.base_dims[s] * host.heads[s] for s in range(len(stages))]
    if isinstance(host.patch_embed.conv, nn.Conv2d):
        yield Site(Seam.STEM, "patch_embed.conv", dims[0])
    if isinstance(host.pos_embed, nn.Parameter):
        yield Site(Seam.POSITION, "pos_embed", dims[0], absent=torch.zeros_like(host.pos_embed))
    for s, stage in enumerate(stages):
        at: dict[str, Any] = {"depth": depth, "stage": s, "stages": len(stages)}
        cell = LatticeCell(stage, _inside, prefix=host.num_tokens, before=True)
        if stage.pool is not None:
            yield _merge(
                stage.pool, f"transformers.{s}.pool", {**at, "layer": layer, "dim": dims[s - 1], "out_dim": dims[s]}
            )
        for i, block in enumerate(stage.blocks):
            here = {**at, "layer": layer, "dim": dims[s], "cell": cell}
            path = f"transformers.{s}.blocks.{i}"
            yield from attention_sites(block.attn, f"{path}.attn", ("norm1", "ls1", "drop_path1"), here)
            yield from feed_forward(block.mlp, f"{path}.mlp", **here, branch=("norm2", "ls2", "drop_path2"))
            layer += 1


def _merge(pool: nn.Module, path: str, at: dict[str, Any]) -> Site:
    known = isinstance(getattr(pool, "conv", None), nn.Conv2d)
    return Site(
        Seam.MERGE, path, **at, fit=_beside, merging=Merging(conv="conv"), plain="" if known else not_plain(pool)
    )


def _beside(new: nn.Module, old: nn.Module) -> nn.Module:
    return PoolBeside(new, old.get_submodule("fc"))


def _inside(stage: Any, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    height, width = args[0][0].shape[-2:]
    # The pool halves the map, rounding up; DTM in its place does the same.
    return (height, width) if stage.pool is None else ((height + 1) // 2, (width + 1) // 2)
