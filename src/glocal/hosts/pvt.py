"""timm's PVT v2: a pyramid whose blocks are told the size of their map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.models.pvt_v2 import MlpWithDepthwiseConv, PyramidVisionTransformerV2
from torch import nn

from glocal.hosts.feed_forward import bare, not_plain
from glocal.site import LatticeCell, Merging, Seam, Site
from glocal.wrappers import OnMap


def sites(host: PyramidVisionTransformerV2) -> Iterator[Site]:
    """List what the host offers."""
    stages: list[Any] = list(host.stages.children())
    depth, layer = sum(len(stage.blocks) for stage in stages), 0
    dim = int(host.feature_info[0]["num_chs"])
    if isinstance(host.patch_embed.proj, nn.Conv2d):
        yield Site(Seam.STEM, "patch_embed.proj", dim)
    for s, stage in enumerate(stages):
        at: dict[str, Any] = {"depth": depth, "stage": s, "stages": len(stages)}
        out_dim = int(host.feature_info[s]["num_chs"])
        if stage.downsample is not None:
            yield _merge(
                stage.downsample, f"stages.{s}.downsample", {**at, "layer": layer, "dim": dim, "out_dim": out_dim}
            )
        dim = out_dim
        for i, block in enumerate(stage.blocks):
            yield from _block(block, f"stages.{s}.blocks.{i}", {**at, "layer": layer, "dim": dim})
            layer += 1


def _block(block: Any, path: str, at: dict[str, Any]) -> Iterator[Site]:
    at = {**at, "cell": LatticeCell(block, _feat_size, before=True)}
    heads = int(getattr(bare(block.attn), "num_heads", 0))
    yield Site(Seam.ATTENTION, f"{path}.attn", **at, heads=heads, branch=("norm1", "drop_path1"))
    yield Site(Seam.MIXED, f"{path}.attn", **at)
    network = bare(block.mlp)
    if isinstance(network, MlpWithDepthwiseConv):
        hidden = network.fc1.out_features
        yield Site(Seam.FFN, f"{path}.mlp", **at, hidden=hidden, branch=("norm2", "drop_path2"))
        yield Site(Seam.HIDDEN, f"{path}.mlp.act", **{**at, "dim": hidden})
    else:
        yield Site(Seam.FFN, f"{path}.mlp", **at, plain=not_plain(network))


def _merge(merge: nn.Module, path: str, at: dict[str, Any]) -> Site:
    known = isinstance(getattr(merge, "proj", None), nn.Conv2d)
    plain = "" if known else not_plain(getattr(merge, "inner", merge))
    return Site(Seam.MERGE, path, **at, fit=_on_map, merging=Merging(conv="proj"), plain=plain)


def _on_map(new: nn.Module, old: nn.Module) -> nn.Module:
    return OnMap(new, first=True)  # a stage hands over (B, C, H, W) and wants (B, H, W, C) back


def _feat_size(block: nn.Module, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    return args[1][0], args[1][1]
