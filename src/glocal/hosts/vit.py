"""timm's VisionTransformer: ViT, DeiT (distilled too), DINOv2, SigLIP, DeiT-3, ResNet hybrids."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from timm.layers import PatchEmbed
from timm.layers.attention import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import nn

from glocal.hosts.feed_forward import bare, feed_forward, not_plain
from glocal.site import LatticeCell, Seam, Site


def sites(host: VisionTransformer) -> Iterator[Site]:
    """List what the host offers."""
    blocks = list(host.blocks.children())
    cell = LatticeCell(host.patch_embed, patch_grid, prefix=host.num_prefix_tokens)
    if isinstance(host.patch_embed, PatchEmbed) and isinstance(host.patch_embed.proj, nn.Conv2d):
        yield Site(Seam.STEM, "patch_embed.proj", host.embed_dim)
    if host.pos_embed is not None:
        # A distilled DeiT always adds its positions, so it gets zeros to add.
        absent = torch.zeros_like(host.pos_embed) if isinstance(host, VisionTransformerDistilled) else None
        yield Site(Seam.POSITION, "pos_embed", host.embed_dim, absent=absent)
    for i, block in enumerate(blocks):
        at = {"layer": i, "depth": len(blocks), "dim": host.embed_dim, "cell": cell, "recall": tuple(blocks)}
        yield from _block(block, f"blocks.{i}", at)


def _block(block: nn.Module, path: str, at: dict[str, Any]) -> Iterator[Site]:
    if isinstance(block, ParallelScalingBlock) or hasattr(block, "mlp_act"):  # newer timm has one more of the kind
        yield from _parallel(block, path, at)
    elif isinstance(block, ParallelThingsBlock):
        for j, (attns, ffns) in enumerate(zip(block.attns, block.ffns, strict=True)):
            branch = ("norm", "ls", "drop_path")
            yield from attention_sites(attns.get_submodule("attn"), f"{path}.attns.{j}.attn", branch, at)
            yield from feed_forward(ffns.get_submodule("mlp"), f"{path}.ffns.{j}.mlp", **at, branch=branch)
    else:
        post = isinstance(block, ResPostBlock)
        first, second = (("norm1", "drop_path1"), ("norm2", "drop_path2"))
        first, second = (first, second) if post else ((*first, "ls1"), (*second, "ls2"))
        if hasattr(block, "attn"):  # half a block has one of them alone
            yield from attention_sites(block.get_submodule("attn"), f"{path}.attn", first, at)
        if hasattr(block, "mlp"):
            yield from feed_forward(block.get_submodule("mlp"), f"{path}.mlp", **at, branch=second)


def attention_sites(attention: nn.Module, path: str, branch: tuple[str, ...], at: dict[str, Any]) -> Iterator[Site]:
    """Yield QKV, ATTENTION and MIXED for an attention that sees all tokens."""
    module = bare(attention)
    heads = int(getattr(module, "num_heads", 0))
    if isinstance(module, nn.Module) and isinstance(getattr(module, "qkv", None), nn.Module):
        whole = isinstance(module.qkv, nn.Linear)
        yield Site(Seam.QKV, f"{path}.qkv", **at, heads=heads, plain="" if whole else not_plain(module.qkv))  # type: ignore
    # timm 1.0.20's attention has one width for tokens and heads together, so it cannot be resized.
    resizable = type(module) is Attention and hasattr(module, "attn_dim") and getattr(module, "gate", None) is None
    resize = resize_attention if resizable else None
    yield Site(Seam.ATTENTION, path, **at, heads=heads, branch=branch, resize=resize)
    yield Site(Seam.MIXED, path, **at)


def _parallel(block: nn.Module, path: str, at: dict[str, Any]) -> Iterator[Site]:
    """One input projection serves both halves; their outputs and the hidden map can still be reached."""
    reason = f"{type(block).__name__} computes q, k, v and the hidden map in one projection"
    in_split: Any = block.in_split
    if getattr(block, "mlp_out_proj", None) is not None:
        yield Site(Seam.MIXED, f"{path}.attn_out_proj", **at)
        yield Site(Seam.FFN, f"{path}.mlp_out_proj", **at, plain=reason, tail=True)
    yield Site(Seam.HIDDEN, f"{path}.mlp_act", **{**at, "dim": in_split[0]})


@torch.no_grad()
def resize_attention(attention: Any, heads: int, head_dim: int) -> nn.Module:
    """Make the same attention with fewer heads or wider ones, keeping the weights of heads that stay as they are."""
    new, dim = copy.deepcopy(attention), attention.qkv.in_features
    before, after = attention.num_heads * attention.head_dim, heads * head_dim
    if head_dim != attention.head_dim and not isinstance(attention.q_norm, nn.Identity):
        new.q_norm, new.k_norm = (type(attention.q_norm)(head_dim) for _ in range(2))
    if not isinstance(attention.norm, nn.Identity):
        new.norm = type(attention.norm)(after)
    new.num_heads, new.head_dim, new.scale, new.attn_dim = heads, head_dim, head_dim**-0.5, after  # type: ignore
    new.qkv = nn.Linear(dim, 3 * after, bias=attention.qkv.bias is not None)
    new.proj = nn.Linear(after, attention.proj.out_features, bias=attention.proj.bias is not None)
    if attention.proj.bias is not None:
        new.proj.bias.copy_(attention.proj.bias)
    if head_dim == attention.head_dim:
        rows = torch.cat([torch.arange(after) + part * before for part in range(3)])
        new.qkv.weight.copy_(attention.qkv.weight[rows])
        if attention.qkv.bias is not None:
            new.qkv.bias.copy_(attention.qkv.bias[rows])
        new.proj.weight.copy_(attention.proj.weight[:, :after])
    else:
        for linear in (new.qkv, new.proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
        if attention.qkv.bias is not None:
            nn.init.zeros_(new.qkv.bias)
    return new.to(attention.proj.weight)


def patch_grid(embed: Any, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    """Read the lattice from a patch embedding: from its output where that is a map, else from the image."""
    if output.ndim == 4:  # dynamic_img_size: (B, H, W, C)
        return output.shape[1], output.shape[2]
    height, width = args[0].shape[-2:]
    return embed.dynamic_feat_size((height, width))
