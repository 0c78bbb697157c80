"""What is kept of an attention: some heads, heads fused, or what a reducer makes of a few queries at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glocal.errors import GlocalError, nearest
from glocal.explain.capture import Weights, chunks
from glocal.explain.distance import positions
from glocal.explain.entropy import entropy as _entropy
from glocal.explain.rollout import FUSIONS
from glocal.explain.windows import Windows
from glocal.lattice import Lattice

Heads = Sequence[int] | str | None


@dataclass(frozen=True)
class Rows:
    """Some queries of one attention, with all they look at."""

    weights: Tensor
    """(B, heads, rows, M); B counts windows too, where there are windows."""
    queries: Tensor
    """(B or 1, rows): which token each query is."""
    keys: Tensor
    """(B or 1, M): which token each key is; N stands for padding."""
    query_lattice: Lattice | None
    key_lattice: Lattice | None


Reduce = Callable[[Rows], Tensor]  # to (B, heads, rows, ...)


def entropy(rows: Rows) -> Tensor:
    """Keep each query's entropy: (B, heads, rows)."""
    return _entropy(rows.weights)


def reach(rows: Rows) -> Tensor:
    """Keep how far each query looks, the sum of a_ij * |p_i - p_j|: (B, heads, rows). Prefix tokens are not far."""
    if rows.query_lattice is None or rows.key_lattice is None:
        raise GlocalError("distances need a lattice, and this attention's tokens have none.")
    start = _places(rows.query_lattice).to(rows.weights)[rows.queries]  # (B or 1, rows, 2)
    end = _places(rows.key_lattice).to(rows.weights)[rows.keys]
    far = (start[:, :, None] - end[:, None]).abs().sum(dim=-1).nan_to_num(0.0)  # (B or 1, rows, M)
    return (rows.weights * far[:, None]).sum(dim=-1)


@dataclass(frozen=True)
class Query:
    """Keep what one place of the image looks at, and compute nothing else: (B, heads, 1, M)."""

    row: float
    column: float

    def __call__(self, rows: Rows) -> Tensor:
        return rows.weights

    def tokens(self, how: Fuse) -> list[int]:
        """Tell which query is wanted."""
        if how.queries is None or how.windows is not None:
            reason = (
                "its tokens have none" if how.queries is None else "it attends in windows; use Look.attention there"
            )
            raise GlocalError(f"one place can be kept of an attention that sees a whole lattice, but {reason}.")
        return [token_at(how.queries, self.row, self.column)]


def token_at(lattice: Lattice, row: float, column: float) -> int:
    """Find the token at a place of the image given in shares of its height and width, 0 to 1."""
    if not (0 <= row <= 1 and 0 <= column <= 1):
        raise GlocalError(
            f"the place ({row}, {column}) is not on the image. Give shares of its height and width, 0 to 1."
        )
    down = min(int(row * lattice.height), lattice.height - 1)
    across = min(int(column * lattice.width), lattice.width - 1)
    return lattice.prefix + down * lattice.width + across


@dataclass(frozen=True)
class Fuse:
    """How to keep one attention."""

    heads: Heads
    device: torch.device | str | None
    reduce: Reduce | None
    queries: Lattice | None
    keys: Lattice | None
    windows: Windows | None


def keep(weights: Weights, how: Fuse) -> tuple[Tensor, bool]:
    """Compute what is to be kept, and tell whether it is a reduction of the map."""
    wanted = how.reduce.tokens(how) if isinstance(how.reduce, Query) else None
    parts = [_part(block, index, how, weights.shape) for index, block in chunks(weights, wanted)]
    kept = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
    if how.reduce is not None and how.windows is not None:
        kept = how.windows.in_order(kept)
    return kept if how.device is None else kept.to(how.device), how.reduce is not None


def select(heads: Heads) -> Callable[[Tensor], Tensor]:
    """Turn the choice of heads into a function of (B, heads, rows, M) weights."""
    if heads is None:
        return lambda block: block
    if isinstance(heads, str):
        if heads not in FUSIONS:
            raise GlocalError(
                f"heads {heads!r} is not known.{nearest(heads, FUSIONS)} Use {', '.join(FUSIONS)}, or numbers of heads."
            )
        if heads == "mean":
            return lambda block: block.mean(dim=1, keepdim=True)
        return lambda block: getattr(block, f"a{heads}")(dim=1, keepdim=True)
    return lambda block: _some(block, heads)


def _some(block: Tensor, heads: Sequence[int]) -> Tensor:
    outside = [head for head in heads if not 0 <= head < block.shape[1]]
    if outside or not heads:
        raise GlocalError(
            f"head {outside[0] if outside else '-'} is not there; this attention has heads 0 to {block.shape[1] - 1}."
        )
    return block[:, list(heads)]


def _part(block: Tensor, index: Tensor, how: Fuse, shape: tuple[int, int, int, int]) -> Tensor:
    block = select(how.heads)(block)
    if how.reduce is None:
        return block
    if how.windows is None:
        queries, keys = index[None], torch.arange(shape[3])[None]
    else:
        tokens = how.windows.tokens().repeat(shape[0] // how.windows.count, 1)  # (B * windows, n)
        queries, keys = tokens[:, index], tokens
    return how.reduce(Rows(block, queries.to(block.device), keys.to(block.device), how.queries, how.keys))


def _places(lattice: Lattice) -> Tensor:
    """Give every token's place, nan for prefix tokens and for padding."""
    nowhere = torch.full((1, 2), torch.nan)
    return torch.cat((nowhere.expand(lattice.prefix, 2), positions(lattice), nowhere))
