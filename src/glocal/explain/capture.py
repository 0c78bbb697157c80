"""Reads attention as it happens: what enters the fused kernel, or the softmax of a host that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)
BUDGET = 1 << 24  # weights held at a time while rows are summed up: 64 MiB in single precision


class Weights(Protocol):
    """Attention weights that can be had a few queries at a time."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, heads, N, M."""
        ...

    def rows(self, queries: slice | Tensor) -> Tensor:
        """Compute (B, heads, rows, M)."""
        ...


@dataclass(frozen=True)
class Fused:
    """What entered the fused kernel; softmax(QK^T) is computed beside it, in single precision or better."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    causal: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, count, _ = self.query.shape
        return batch, heads, count, self.key.shape[2]

    def rows(self, queries: slice | Tensor) -> Tensor:
        """Compute (B, heads, rows, M)."""
        query, key = _precise(self.query[:, :, queries]), _precise(self.key)
        with torch.autocast(query.device.type, enabled=False):
            scores = (query * self.scale) @ key.transpose(-2, -1)
            if self.causal:
                place = torch.arange(self.shape[2], device=query.device)[queries]
                later = torch.arange(self.shape[3], device=query.device) > place[:, None]
                scores = scores.masked_fill(later, -torch.inf)
            if self.mask is None:
                return scores.softmax(dim=-1)
            mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., queries, :]
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            return scores.softmax(dim=-1).nan_to_num(0.0)  # a query that may look nowhere looks nowhere


@dataclass(frozen=True)
class Plain:
    """The map itself, where the host makes one."""

    map: Tensor

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return tuple(self.map.shape)  # type: ignore[return-value]

    def rows(self, queries: slice | Tensor) -> Tensor:
        """Copy (B, heads, rows, M): a host may change its own map in place."""
        return self.map[:, :, queries].clone()


def chunks(weights: Weights, queries: Sequence[int] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Give the queries a few at a time, with their (B, heads, rows, M) weights, so that memory stays bounded."""
    batch, heads, count, keys = weights.shape
    wanted = torch.arange(count) if queries is None else torch.as_tensor(queries, dtype=torch.long)
    step = max(1, BUDGET // max(1, batch * heads * keys))
    for part in wanted.split(step):
        yield part, weights.rows(part)


# Called with the weights, the value tensor (None on a plain softmax) and the tensor to ask for a gradient.
Report = Callable[[Weights, Tensor | None, Tensor], None]


class Capture(TorchFunctionMode):
    """Sees every call of the fused kernel and of softmax, lets it run untouched, and reports it."""

    def __init__(self, report: Report, listening: Callable[[], bool]) -> None:
        super().__init__()
        self._report = report
        self._listening = listening

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self._listening():
            entered, value = _entered(*args, **kwargs)
            self._report(entered, value, out)
        elif func in _SOFTMAX and self._listening() and _over_keys(out, args, kwargs):
            self._report(Plain(out.detach()), None, out)
        return out


def _entered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Fused, Tensor]:
    if enable_gqa and key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    mask = None if attn_mask is None else attn_mask.detach()
    query, key, value = (each.detach()[:, None] if each.ndim == 3 else each.detach() for each in (query, key, value))
    return Fused(query, key, mask, factor, is_causal), value


def _over_keys(out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return out.ndim == 4 and dim in (-1, 3)


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


@contextmanager
def unseen() -> Iterator[None]:
    """Hide from torch that calls are being watched: its own attention takes a slower path when they are."""
    with torch._C.DisableTorchFunction():
        yield
