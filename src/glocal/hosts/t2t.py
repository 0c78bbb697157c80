"""glocal's T2T-ViT: plain blocks behind a tokeniser whose own feed-forward networks are places of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.layers import Mlp
from torch import nn

from glocal.hosts.feed_forward import bare, feed_forward, not_plain
from glocal.hosts.pyramid import told_size
from glocal.hosts.vit import attention_sites
from glocal.models.stage import Block
from glocal.models.t2t_vit import T2TViT
from glocal.models.tokens_to_token import TokenStep
from glocal.site import LatticeCell, Seam, Site


def sites(host: T2TViT) -> Iterator[Site]:
    """List what the host offers."""
    steps = (host.tokens_to_token.attention1, host.tokens_to_token.attention2)
    for i, step in enumerate(steps):
        yield _step(step, f"tokens_to_token.attention{i + 1}.mlp", layer=i, depth=len(steps))
    for i, block in enumerate(host.blocks):
        assert isinstance(block, Block) and block.attn is not None
        cell = LatticeCell(block, told_size, prefix=host.num_prefix_tokens, before=True)
        at: dict[str, Any] = {"layer": i, "depth": len(host.blocks), "dim": host.embed_dim, "cell": cell}
        yield from attention_sites(block.attn, f"blocks.{i}.attn", ("norm1", "drop_path1"), at)
        yield from feed_forward(block.mlp, f"blocks.{i}.mlp", **at, branch=("norm2", "drop_path2"))


def _step(step: TokenStep, path: str, **at: Any) -> Site:
    network, dim = bare(step.mlp), step.attn.proj.out_features
    cell = LatticeCell(step, told_size, before=True)
    plain = "" if isinstance(network, Mlp) and isinstance(network.fc1, nn.Linear) else not_plain(network)
    return Site(Seam.TOKENISER, path, dim, **at, hidden=dim, cell=cell, branch=("norm2",), plain=plain)
