"""timm's Swin, SwinV2 and SwinV2-CR: windows of tokens, merged between stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from timm.models.swin_transformer_v2 import PatchMerging, SwinTransformerV2, SwinTransformerV2Block
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr, SwinTransformerV2CrBlock
from torch import Tensor, nn

from glocal.hosts.feed_forward import bare, feed_forward, not_plain
from glocal.site import LatticeCell, Merging, Seam, Site
from glocal.wrappers import OnMap, OnTokens

Swin = SwinTransformer | SwinTransformerV2 | SwinTransformerV2Cr


def sites(host: Swin) -> Iterator[Site]:
    """List what the host offers."""
    name = "stages" if isinstance(host, SwinTransformerV2Cr) else "layers"
    stages: list[Any] = list(host.get_submodule(name).children())
    depth, layer = sum(len(stage.blocks) for stage in stages), 0
    if isinstance(host.patch_embed.proj, nn.Conv2d):
        yield Site(Seam.STEM, "patch_embed.proj", host.patch_embed.proj.out_channels)
    for s, stage in enumerate(stages):
        at: dict[str, Any] = {"depth": depth, "stage": s, "stages": len(stages)}
        if not isinstance(stage.downsample, nn.Identity):
            yield _merge(stage.downsample, f"{name}.{s}.downsample", {**at, "layer": layer})
        for i, block in enumerate(stage.blocks):
            yield from _block(
                host,
                block,
                f"{name}.{s}.blocks.{i}",
                {**at, "layer": layer, "dim": block.dim},
            )
            layer += 1


def _block(host: Swin, block: Any, path: str, at: dict[str, Any]) -> Iterator[Site]:
    attention: Any = bare(block.attn)
    window = LatticeCell(block.attn, _window, before=True)
    heads = int(getattr(attention, "num_heads", 0))
    # SwinV2 calls its projection as a module only when it adds the biases itself.
    wants = {"qkv_bias_separate": True} if isinstance(host, SwinTransformerV2) else {}
    inside = {**at, "cell": window, "heads": heads, "whole": False}
    if hasattr(attention, "qkv"):
        plain = "" if isinstance(attention.qkv, nn.Linear) else not_plain(attention.qkv)
        yield Site(Seam.QKV, f"{path}.attn.qkv", **inside, wants=wants, plain=plain)
    freed = _without_attention(type(block))
    yield Site(Seam.ATTENTION, f"{path}.attn", **inside, branch=("norm1", "drop_path1"), freed=freed)
    # The branch's output over the whole map enters the drop path of Swin, the post-norm of SwinV2.
    gate = "drop_path1" if isinstance(host, SwinTransformer) else "norm1"
    yield Site(Seam.MIXED, f"{path}.{gate}", **at, before=True, fit=_on_tokens)
    cell = LatticeCell(block, _map, before=True)
    yield from feed_forward(block.mlp, f"{path}.mlp", **at, cell=cell, branch=("norm2", "drop_path2"))


class _NoWindows:
    """What a Swin block does when its attention is gone: no windows to cut, shift or resize."""

    def _attn(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    _shifted_window_attn = _attn  # SwinV2-CR's name for it

    def set_input_size(self, feat_size: tuple[int, int], window_size: Any = None, always_partition: Any = None) -> None:
        """Take note of the map's size."""


class SwinMlpBlock(_NoWindows, SwinTransformerBlock):
    """A Swin block without attention."""


class SwinV2MlpBlock(_NoWindows, SwinTransformerV2Block):
    """A SwinV2 block without attention."""


class SwinV2CrMlpBlock(_NoWindows, SwinTransformerV2CrBlock):
    """A SwinV2-CR block without attention."""


def _without_attention(kind: type[nn.Module]) -> type[nn.Module]:
    kinds = (SwinMlpBlock, SwinV2MlpBlock, SwinV2CrMlpBlock)
    return next(each for each in kinds if issubclass(each, kind) or issubclass(kind, each))


def _merge(merge: Any, path: str, at: dict[str, Any]) -> Site:
    known = isinstance(getattr(merge, "reduction", None), nn.Linear)
    dim = merge.reduction.in_features // 4 if known else 0
    norm_first = known and merge.norm.normalized_shape[0] == 4 * dim
    finish = ("norm", "reduction") if norm_first else ("reduction", "norm")
    return Site(
        Seam.MERGE,
        path,
        **at,
        dim=dim,
        out_dim=merge.reduction.out_features if known else None,
        fit=_on_map,
        merging=Merging(finish=finish, columns_first=True),
        plain="" if known else not_plain(getattr(merge, "inner", merge)),
    )


def _on_tokens(new: nn.Module, old: nn.Module) -> nn.Module:
    return OnTokens(new)


class SwinV2Merge(OnMap, PatchMerging):
    """A merging that SwinV2 accepts: it wants a PatchMerging when its size changes."""


def _on_map(new: nn.Module, old: nn.Module) -> nn.Module:
    merge = OnMap(new)
    if isinstance(old, PatchMerging):
        merge.__class__ = SwinV2Merge
    return merge


def _window(attention: Any, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    return attention.window_size


def _map(block: nn.Module, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    return args[0].shape[1], args[0].shape[2]  # (B, H, W, C)
