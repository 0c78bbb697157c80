"""Where Deformable Token Merging looks: sampling points of a merged token, traced back to the image.

Pan et al., "Less is More: Pay Less Attention in Vision Transformers", Figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.mechanisms.token_merge import DeformableConv, DeformableGather


@dataclass(frozen=True)
class Merge:
    """One deformable merge of one pass: its (B, 2 * taps, H', W') offsets, the map it read, and its kernel."""

    offset: Tensor
    size: tuple[int, int]
    kernel: int = 2
    stride: int = 2
    padding: int = 0


def trace(merges: Sequence[Merge], points: Tensor) -> Tensor:
    """Follow (P, 2) points, (row, column) on the last merged map, back through every merge, first merge first.

    Each point becomes its taps, so three merges of 2x2 make 4^3 of one. Between tokens the offset is interpolated, as
    the sampling itself is. Returns (B, P * taps ** merges, 2) in tokens of the map the first merge read.
    """
    if not merges:
        raise GlocalError("no merge was given, so there is nothing to trace back.")
    batch = merges[0].offset.shape[0]
    where = points.to(merges[0].offset).expand(batch, -1, 2)
    for merge in reversed(merges):
        where = _taps(merge, where)
    return where


def merges_of(model: nn.Module, images: Tensor) -> list[Merge]:
    """Run the model once and read every deformable merge's offsets, in the order in which they ran."""
    merges: list[Merge] = []
    handles = []
    for module in model.modules():
        if isinstance(module, (DeformableConv, DeformableGather)):
            handles.append(module.offset.register_forward_hook(_Reader(merges)))
    if not handles:
        raise GlocalError(
            f"{type(model).__name__} has no deformable token merging, so it has no sampling points. "
            f"Graft DTM() onto a host with stages, or use a LIT."
        )
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return merges


def sampling_points(model: nn.Module, images: Tensor, token: tuple[int, int]) -> Tensor:
    """Give the image places that one token of the last merged map is made of: (B, points, 2) pixels, (row, column)."""
    merges = merges_of(model, images)
    height, width = merges[-1].offset.shape[-2:]
    if not (0 <= token[0] < height and 0 <= token[1] < width):
        raise GlocalError(
            f"token {token} is not on the last merged map of {height}x{width} tokens; rows and columns start at 0."
        )
    points = trace(merges, torch.tensor([token], dtype=torch.float32))
    side = torch.tensor(images.shape[-2:]) / torch.tensor(merges[0].size)  # pixels per token of the first map
    return (points.float().cpu() + 0.5) * side - 0.5


class _Reader:
    """Notes the offsets of one merge; a plain object, so that nothing of it stays in the model."""

    def __init__(self, merges: list[Merge]) -> None:
        self.merges = merges

    def __call__(self, conv: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        height, width = args[0].shape[-2:]
        self.merges.append(Merge(output.detach(), (height, width), conv.weight.shape[-1], conv.stride, conv.padding))


def _taps(merge: Merge, where: Tensor) -> Tensor:
    """(B, P, 2) places on the merged map become (B, P * taps, 2) places on the map before."""
    tap = torch.cartesian_prod(torch.arange(merge.kernel), torch.arange(merge.kernel)).view(-1, 2).to(where)
    start = where * merge.stride - merge.padding  # (B, P, 2)
    moves = _between(merge.offset, where).unflatten(-1, (-1, 2))  # (B, P, taps, 2)
    return (start[:, :, None] + tap + moves).flatten(1, 2)


def _between(offset: Tensor, where: Tensor) -> Tensor:
    """Read (B, C, H, W) offsets at (B, P, 2) places, linear between tokens, held at the border: (B, P, C)."""
    height, width = offset.shape[-2:]
    limit = torch.tensor([height - 1, width - 1]).to(where)
    where = torch.minimum(where.clamp_min(0), limit)
    corner = where.floor()
    share = where - corner
    total = torch.zeros((), device=offset.device)
    flat = offset.flatten(2).transpose(1, 2)  # (B, H * W, C)
    for dy in (0, 1):
        for dx in (0, 1):
            at = torch.minimum(corner + torch.tensor([dy, dx]).to(where), limit).long()
            index = at[..., 0] * width + at[..., 1]
            value = flat.gather(1, index[..., None].expand(-1, -1, flat.shape[-1]))
            weight = (share[..., 0] if dy else 1 - share[..., 0]) * (share[..., 1] if dx else 1 - share[..., 1])
            total = total + value * weight[..., None]
    return total
