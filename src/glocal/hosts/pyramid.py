"""glocal's own pyramids, PVT v1 and LIT: every block is told its lattice, and the last stage may have a class token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from glocal.hosts.feed_forward import bare, feed_forward, not_plain
from glocal.hosts.vit import attention_sites
from glocal.mechanisms.token_merge import DeformableMerge
from glocal.models.lit import GatherMerge
from glocal.models.pyramid import Pyramid
from glocal.models.stage import Block, ConvMerge, Stage
from glocal.site import LatticeCell, Merging, Seam, Site


def sites(host: Pyramid) -> Iterator[Site]:
    """List what the host offers."""
    stages = [stage for stage in host.stages if isinstance(stage, Stage)]
    depth, layer, dim = sum(len(stage.blocks) for stage in stages), 0, 0
    for s, stage in enumerate(stages):
        at: dict[str, Any] = {"depth": depth, "stage": s, "stages": len(stages)}
        if s:
            yield _merge(stage.merge, f"stages.{s}.merge", {**at, "layer": layer, "dim": dim, "out_dim": stage.dim})
        elif isinstance(stage.merge, ConvMerge) and isinstance(stage.merge.proj, nn.Conv2d):
            yield Site(Seam.STEM, "stages.0.merge.proj", stage.dim)
        if stage.pos_embed is not None:
            yield Site(Seam.POSITION, f"stages.{s}.pos_embed", stage.dim)
        dim = stage.dim
        for i, block in enumerate(stage.blocks):
            assert isinstance(block, Block)
            yield from _block(block, f"stages.{s}.blocks.{i}", {**at, "layer": layer, "dim": dim}, stage.prefix)
            layer += 1


def _block(block: Block, path: str, at: dict[str, Any], prefix: int) -> Iterator[Site]:
    at = {**at, "cell": LatticeCell(block, told_size, prefix=prefix, before=True)}
    if block.attn is not None:
        yield from attention_sites(block.attn, f"{path}.attn", ("norm1", "drop_path1"), at)
    yield from feed_forward(block.mlp, f"{path}.mlp", **at, branch=("norm2", "drop_path2"))


def _merge(merge: nn.Module, path: str, at: dict[str, Any]) -> Site:
    if isinstance(bare(merge), GatherMerge):
        return Site(Seam.MERGE, path, **at, merging=Merging(finish=("norm", "reduction"), columns_first=True))
    plain = "" if isinstance(merge, ConvMerge) and isinstance(merge.proj, nn.Conv2d) else not_plain(merge)
    if isinstance(merge, DeformableMerge):
        plain = "its tokens merge deformably already"
    return Site(Seam.MERGE, path, **at, merging=Merging(conv="proj"), plain=plain)


def told_size(block: nn.Module, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    """Read the size of a map from the lattice that a block is told."""
    return args[1].height, args[1].width
