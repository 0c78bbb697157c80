"""timm's Eva: EVA, EVA-02, DINOv3 and Perception Encoder, with rotary positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from timm.layers import PatchEmbed
from timm.models.eva import Eva
from torch import nn

from glocal.hosts.feed_forward import bare, feed_forward, not_plain
from glocal.hosts.vit import patch_grid
from glocal.site import LatticeCell, Seam, Site


def sites(host: Eva) -> Iterator[Site]:
    """List what the host offers."""
    blocks: list[Any] = list(host.blocks.children())
    cell = LatticeCell(host.patch_embed, patch_grid, prefix=host.num_prefix_tokens)
    if isinstance(host.patch_embed, PatchEmbed) and isinstance(host.patch_embed.proj, nn.Conv2d):
        yield Site(Seam.STEM, "patch_embed.proj", host.embed_dim)
    if host.pos_embed is not None:
        yield Site(Seam.POSITION, "pos_embed", host.embed_dim)
    for i, block in enumerate(blocks):
        at = {"layer": i, "depth": len(blocks), "dim": host.embed_dim, "cell": cell, "recall": tuple(blocks)}
        yield from _block(block, f"blocks.{i}", at)


def _block(block: Any, path: str, at: dict[str, Any]) -> Iterator[Site]:
    attention: Any = bare(block.attn)
    heads = int(getattr(attention, "num_heads", 0))
    if isinstance(getattr(attention, "qkv", None), nn.Module):
        # As in SwinV2, the projection is called as a module only when its biases are added apart.
        wants = {"qkv_bias_separate": True} if hasattr(attention, "qkv_bias_separate") else {}
        plain = "" if isinstance(attention.qkv, nn.Linear) else not_plain(attention.qkv)
        yield Site(Seam.QKV, f"{path}.attn.qkv", **at, heads=heads, wants=wants, plain=plain)
    branch, scaled = ("norm1", "drop_path1"), _scaled(block, "gamma_1")
    yield Site(Seam.ATTENTION, f"{path}.attn", **at, heads=heads, branch=branch, plain=scaled)
    yield Site(Seam.MIXED, f"{path}.attn", **at)
    for site in feed_forward(block.mlp, f"{path}.mlp", **at, branch=("norm2", "drop_path2")):
        yield site if site.seam is Seam.HIDDEN else replace(site, plain=site.plain or _scaled(block, "gamma_2"))


def _scaled(block: nn.Module, name: str) -> str:
    """A branch with a scale of its own would keep it, idle, if its module went."""
    return "" if getattr(block, name, None) is None else f"{type(block).__name__} scales that branch by its {name}"
