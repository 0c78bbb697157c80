"""Attention Roll-Out and its gradient form: how far each input token reaches each output token.

Abnar & Zuidema, "Quantifying Attention Flow in Transformers" (2020); Chefer et al., "Generic Attention-model
Explainability" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from glocal.errors import GlocalError, nearest
from glocal.explain.between import pooling
from glocal.lattice import Lattice

Fusion = Literal["mean", "max", "min"]
FUSIONS: tuple[Fusion, ...] = ("mean", "max", "min")


class RollOut:
    """Roll attention out layer by layer, keeping one running product instead of every layer's map."""

    def __init__(self, fusion: Fusion = "mean", discard: float = 0.0) -> None:
        if fusion not in FUSIONS:
            raise GlocalError(
                f"head fusion {fusion!r} is not known.{nearest(fusion, FUSIONS)} Use {', '.join(FUSIONS)}."
            )
        if not 0 <= discard < 1:
            raise GlocalError(f"the discard ratio is {discard}; it is a share of the weights, from 0 up to below 1.")
        self.fusion: Fusion = fusion
        self.discard = discard
        self.lattice: Lattice | None = None  # of the last layer so far: the rows
        self.first: Lattice | None = None  # of the first layer: the columns
        self._flow: Tensor | None = None

    @property
    def flow(self) -> Tensor:
        """What has been rolled out so far, (B, N, N of the first layer); rows sum to one."""
        if self._flow is None:
            raise GlocalError("no attention has been rolled out yet. Add at least one layer.")
        return self._flow / self._flow.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(self._flow.dtype).tiny)

    def add(self, attention: Tensor, lattice: Lattice | None = None) -> None:
        """Add one layer's (B, heads, N, N) map; a lattice lets token merging between layers be followed."""
        step = _drop(_fuse(attention, self.fusion), self.discard, lattice.prefix if lattice else 0)
        step = step + torch.eye(step.shape[-1], dtype=step.dtype, device=step.device)  # the residual connection
        step = step / step.sum(dim=-1, keepdim=True)
        self._flow = step if self._flow is None else step @ _carry(self._flow, self.lattice, lattice)
        self.lattice, self.first = lattice, self.first or lattice


def rollout(
    attention: Sequence[Tensor],
    lattices: Sequence[Lattice | None] | None = None,
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
) -> Tensor:
    """Trace how far each input token reaches each output token.

    Takes one (B, heads, N, N) map per layer, first layer first, and their lattices where tokens merge in between.
    `discard` drops that share of the smallest weights, never those to prefix tokens. Returns (B, N, N), rows summing to
    one.
    """
    roll = RollOut(fusion, discard)
    for each, lattice in zip(attention, _known(attention, lattices), strict=True):
        roll.add(each, lattice)
    return roll.flow


def gradient_rollout(
    attention: Sequence[Tensor],
    gradients: Sequence[Tensor],
    lattices: Sequence[Lattice | None] | None = None,
    *,
    itself: bool = True,
) -> Tensor:
    """Trace what speaks for one output: R + mean over heads of (gradient * attention)+ @ R, from the identity.

    Gradients are those of the output in question by each map. Returns (B, N, N) relevance; `itself=False` takes the
    identity it began with away again, which says nothing about the image.
    """
    flow, still, last = None, None, None
    for each, gradient, lattice in zip(attention, gradients, _known(attention, lattices), strict=True):
        step = (each * gradient).clamp_min(0).mean(dim=1)
        if flow is None or still is None:
            flow = still = torch.eye(step.shape[-1], dtype=step.dtype, device=step.device).expand_as(step)
        flow, still = _carry(flow, last, lattice), _carry(still, last, lattice)
        flow, last = flow + step @ flow, lattice
    if flow is None or still is None:
        raise GlocalError("no attention has been rolled out yet. Give at least one layer.")
    return flow if itself else flow - still


def looked_at(
    flow: Tensor, first: Lattice, *, last: Lattice | None = None, token: int | Literal["class", "mean"] = "class"
) -> Tensor:
    """Turn a flow's row into a (B, H, W) map of the first layer's patches.

    `token` is the output token that looks: the class token, or the average patch token ("mean", and "class" where
    the last lattice has no prefix), or any token by its number, prefix tokens first.
    """
    last = last or first
    if isinstance(token, str):
        classless = token == "mean" or not last.prefix
        row = flow[:, last.prefix :].mean(dim=1) if classless else flow[:, 0]
    else:
        row = flow[:, token]
    return row[:, first.prefix :].unflatten(1, (first.height, first.width))


def _fuse(attention: Tensor, fusion: Fusion) -> Tensor:
    if fusion == "mean":
        return attention.mean(dim=1)
    return attention.amax(dim=1) if fusion == "max" else attention.amin(dim=1)


def _drop(step: Tensor, discard: float, prefix: int) -> Tensor:
    """Set the smallest weights to patches to zero, per image."""
    patches = step[..., prefix:].flatten(1)
    count = int(patches.shape[1] * discard)
    if not count:
        return step
    weakest = patches.topk(count, dim=1, largest=False, sorted=False).indices
    kept = patches.scatter(1, weakest, 0.0).view_as(step[..., prefix:])
    return torch.cat((step[..., :prefix], kept), dim=-1)


def _carry(flow: Tensor, last: Lattice | None, now: Lattice | None) -> Tensor:
    """Follow the flow through a merge of tokens between two layers."""
    if last == now or last is None or now is None:
        return flow
    return pooling(last, now).to(flow) @ flow


def _known(attention: Sequence[Tensor], lattices: Sequence[Lattice | None] | None) -> Sequence[Lattice | None]:
    if lattices is not None:
        return lattices
    sizes = sorted({each.shape[-1] for each in attention} | {each.shape[-2] for each in attention})
    if len(sizes) > 1:
        raise GlocalError(
            f"the layers have {sizes[0]} to {sizes[-1]} tokens. Give their lattices, so that merges can be followed."
        )
    return [None] * len(attention)
