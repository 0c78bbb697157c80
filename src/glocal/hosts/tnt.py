"""timm's TNT: the outer transformer of patches; the inner one of pixels stays as it is, as in LocalViT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.models.tnt import TNT, Block
from torch import Tensor

from glocal.hosts.feed_forward import bare, feed_forward
from glocal.site import LatticeCell, Seam, Site


class FreeFeedForward(Block):
    """A TNT block without drop path after its outer feed-forward network.

    The host shares one drop path among four branches, so it cannot be silenced for one of them alone.
    """

    def forward(self, pixel_embed: Tensor, patch_embed: Tensor) -> tuple[Tensor, Tensor]:
        pixels, drop = pixel_embed, self.drop_path
        pixels = pixels + drop(self.attn_in(self.norm_in(pixels)))
        pixels = pixels + drop(self.mlp_in(self.norm_mlp_in(pixels)))
        class_token, patches = patch_embed[:, :1], patch_embed[:, 1:]
        inner = pixels.unflatten(0, (patches.shape[0], -1))  # (B, N, pixels, C)
        if self.norm2_proj is None:  # the first public version of TNT
            patches = patches + self.proj(self.norm1_proj(inner).flatten(2))
        else:
            patches = patches + self.norm2_proj(self.proj(self.norm1_proj(inner.flatten(2))))
        tokens = torch.cat((class_token, patches), dim=1)
        tokens = tokens + drop(self.attn_out(self.norm_out(tokens)))
        return pixels, tokens + self.mlp(self.norm_mlp(tokens))


def sites(host: TNT) -> Iterator[Site]:
    """List what the host offers."""
    blocks: list[Any] = list(host.blocks.children())
    cell = LatticeCell(host.pixel_embed, _grid, prefix=host.num_prefix_tokens)
    for i, block in enumerate(blocks):
        at: dict[str, Any] = {"layer": i, "depth": len(blocks), "dim": host.embed_dim, "cell": cell}
        heads = int(getattr(bare(block.attn_out), "num_heads", 0))
        yield Site(Seam.ATTENTION, f"blocks.{i}.attn_out", **at, heads=heads, branch=("norm_out",))
        yield Site(Seam.MIXED, f"blocks.{i}.attn_out", **at)
        yield from feed_forward(block.mlp, f"blocks.{i}.mlp", **at, branch=("norm_mlp",), freed=FreeFeedForward)


def _grid(embed: Any, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    return embed.grid_size  # a TNT is built for one image size
