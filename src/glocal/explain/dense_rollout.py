"""Dense Attention Roll-Out: where the tokens of one predicted class look, without what all tokens look at.

"LIFE: A Flexible and Efficient Module for Incorporating Local Information into Vision Transformers", section 4.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from glocal.errors import GlocalError
from glocal.explain.between import cover
from glocal.lattice import Lattice

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


def global_map(flow: Tensor, first: Lattice, last: Lattice | None = None) -> Tensor:
    """Average over all patch tokens: the content they share, (B, H, W)."""
    last = last or first
    return _on_map(flow[:, last.prefix :].mean(dim=1), first)


def class_map(
    flow: Tensor, share: Tensor, first: Lattice, last: Lattice | None = None, *, signed: bool = False
) -> Tensor:
    """Average the rows of a class's tokens and take the global content away: (B, H, W).

    `share` is (B, patches): how much of each patch belongs to the class. Tokens that belong to it for at least one half
    count; where none does, the one with most of it. What is left below zero is cut unless `signed`.
    """
    last = last or first
    rows = flow[:, last.prefix :]
    chosen = relevant(share).to(rows)
    own = (chosen[:, None] @ rows).squeeze(1) / chosen.sum(dim=1, keepdim=True)
    rest = own - rows.mean(dim=1)
    return _on_map(rest if signed else rest.clamp_min(0), first)


def from_segmentation(
    flow: Tensor, labels: Tensor, first: Lattice, last: Lattice | None = None, *, ignore: int = 255
) -> dict[int, Tensor]:
    """Give every class of a (H, W) label map its own map, for one image's (1, N, N) flow."""
    classes = [int(each) for each in labels.unique() if int(each) != ignore]
    if not classes:
        raise GlocalError(f"the label map holds nothing but the ignored label {ignore}, so no class has a map.")
    shares = {each: cover((labels == each)[None], last or first) for each in classes}
    return {each: class_map(flow, share, first, last) for each, share in shares.items()}


def from_boxes(
    flow: Tensor, boxes: Mapping[str, Sequence[Box]], size: tuple[int, int], first: Lattice, last: Lattice | None = None
) -> dict[str, Tensor]:
    """Give every class its map from its boxes on an image of (height, width) pixels, for one image's (1, N, N) flow."""
    shares = {name: cover(_inside(each, size), last or first) for name, each in boxes.items()}
    for name, share in shares.items():
        if not share.any():
            raise GlocalError(
                f"the boxes of {name!r} lie outside the {size[1]}x{size[0]} image. Boxes are left, top, right, bottom."
            )
    return {name: class_map(flow, share, first, last) for name, share in shares.items()}


def relevant(share: Tensor) -> Tensor:
    """Choose the tokens of which a class has at least one half, or else the ones it has most of: (B, patches)."""
    most = share.amax(dim=1, keepdim=True)
    return share >= most.clamp_max(0.5)


def _inside(boxes: Sequence[Box], size: tuple[int, int]) -> Tensor:
    mask = torch.zeros(1, *size)
    for left, top, right, bottom in boxes:
        mask[0, max(int(top), 0) : max(round(bottom), 0), max(int(left), 0) : max(round(right), 0)] = 1
    return mask


def _on_map(row: Tensor, lattice: Lattice) -> Tensor:
    return row[:, lattice.prefix :].unflatten(1, (lattice.height, lattice.width))
