"""Where mechanisms and hosts meet: seams, the sites a host offers, and the cell that tells a site its lattice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from threading import get_ident
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from glocal.errors import GlocalError, LatticeError
from glocal.lattice import Lattice

Layers = str | tuple[int, ...]


class Seam(StrEnum):
    """The places of a vision transformer that a mechanism can change."""

    STEM = "stem"  # the convolution that turns the image into patches
    POSITION = "position"  # absolute positions
    QKV = "qkv"  # one projection to queries, keys and values
    ATTENTION = "attention"  # the attention module; on windowed hosts it sees one window
    MIXED = "mixed"  # what comes out of the attention branch, over the whole map
    FFN = "ffn"  # the feed-forward network
    HIDDEN = "hidden"  # the feed-forward network's hidden tokens, after the activation
    MERGE = "merge"  # the step that merges neighbouring tokens between two stages
    TOKENISER = "tokeniser"  # the feed-forward network of a step that makes tokens (T2T)


Grid = Callable[[nn.Module, tuple[Any, ...], Any], tuple[int, int]]


class LatticeCell:
    """Holds the lattice of the forward pass under way. It and `Handover` are the only hidden state in the project.

    A hook on `source` writes it; modules grafted with `OnLattice` read it. The hook is a bound method, because a
    closure would survive `deepcopy` still pointing at the old model.
    """

    def __init__(self, source: nn.Module, grid: Grid, *, prefix: int = 0, before: bool = False) -> None:
        self._source: nn.Module | None = source
        self._grid = grid
        self._before = before
        self._prefix = prefix
        self._now: Lattice | Sets | None = None
        self._seen = WeakTensorKeyDictionary()

    def install(self, recall: Iterable[nn.Module] = ()) -> list[RemovableHandle]:
        """Hook the source, once. `recall` are the blocks that gradient checkpointing may run a second time."""
        if self._source is None:
            return []
        if self._before:
            handles = [self._source.register_forward_pre_hook(self._write_before)]
        else:
            handles = [self._source.register_forward_hook(self._write_after)]
        handles += [block.register_forward_pre_hook(self._recall_before) for block in recall]
        self._source = None
        return handles  # for those who look for a while and leave nothing behind

    def read(self) -> Lattice:
        """Return the lattice written by the pass under way."""
        if not isinstance(self._now, Lattice):
            raise LatticeError(
                "no image has passed the patch embedding yet, so the tokens have no place on a lattice. "
                "Call the whole model, or the module that embeds the patches first."
            )
        return self._now

    def _write_before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._write(*self._grid(module, args, None))

    def _write_after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._write(*self._grid(module, args, output))

    def _write(self, height: int, width: int) -> None:
        self._now = Lattice(height, width, self._prefix)

    def _recall_before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # Gradient checkpointing runs a block again during backward, when the cell may hold the lattice of a later
        # image. The block gets the very same input tensor then, so that tensor remembers its lattice.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        tokens: Tensor = args[0]
        known = cast("Lattice | Sets | None", self._seen.get(tokens))  # pyright: ignore[reportUnknownMemberType]
        if known is None:
            self._seen[tokens] = self._now
        else:
            self._now = known

    def __getstate__(self) -> dict[str, Any]:
        # Sizes of one pass (symbols, after an export) and weak references stay behind.
        return {**self.__dict__, "_source": None, "_now": None, "_seen": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._seen = WeakTensorKeyDictionary()


@dataclass(frozen=True)
class Sets:
    """Two sets of tokens in one sequence: `text` tokens first, image tokens after; `mask` (B, N) is 0 at padding."""

    text: int
    mask: Tensor


class SetsCell(LatticeCell):
    """Holds the sets of tokens of the pass under way, as `LatticeCell` holds its lattice."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__(source, _no_grid)

    def sets(self) -> Sets:
        """Return the sets written by the pass under way."""
        if not isinstance(self._now, Sets):
            raise LatticeError("no text and image have passed the embeddings yet. Call the whole model.")
        return self._now

    def _write_after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._now = Sets(args[1].shape[1], output[1])  # the embeddings are given the text's mask, and give the whole


def _no_grid(module: nn.Module, args: tuple[Any, ...], output: Any) -> tuple[int, int]:
    raise LatticeError("these tokens lie on no lattice.")


class Handover:
    """Lets a mechanism compute queries, keys and values together on a host that projects to each by itself.

    The first projection is called with the tokens, computes all three, and leaves two for the calls that follow: in the
    same thread, because one model may serve several, and nn.DataParallel's copies share this object.
    """

    def __init__(self, projections: tuple[nn.Linear, nn.Linear, nn.Linear]) -> None:
        self._projections: tuple[nn.Linear, ...] = projections
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def whole(self) -> nn.Linear:
        """Lay the host's three projections side by side, and forget them."""
        three, self._projections = self._projections, ()
        first = three[0].weight
        whole = nn.Linear(first.shape[1], sum(len(each.weight) for each in three), device="meta")
        whole.weight = nn.Parameter(torch.cat([each.weight.detach() for each in three]))
        biases = [cast("Tensor | None", each.bias) for each in three]
        bias = [
            first.new_zeros(len(each.weight)) if b is None else b.detach()
            for each, b in zip(three, biases, strict=True)
        ]
        whole.bias = nn.Parameter(torch.cat(bias))
        return whole

    def give(self, keys: Tensor, values: Tensor) -> None:
        """Leave keys and values for the calls that follow."""
        self._held[_thread()] = (keys, values)

    def take(self, part: int) -> Tensor:
        """Take what was left: the keys (1), then the values (2)."""
        thread = _thread()
        if thread not in self._held:
            raise GlocalError(
                "keys or values were asked for before queries. LIFE computes the three together, queries first; "
                "call the whole attention, not its projections."
            )
        held = self._held[thread] if part == 1 else self._held.pop(thread)
        return held[part - 1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_projections": (), "_held": {}}


def _thread() -> int:
    return 0 if torch.compiler.is_compiling() else get_ident()  # a graph holds nothing between its calls


@dataclass(frozen=True)
class Merging:
    """How a host merges tokens, for mechanisms that keep its weights."""

    conv: str | None = None  # the child convolution that does it, if one does
    finish: tuple[str, ...] = ()  # else: the children applied, in order, to the gathered taps
    columns_first: bool = False  # the order in which the taps are concatenated


@dataclass(frozen=True)
class Site:
    """One place of one host, ready for a graft."""

    seam: Seam
    path: str
    dim: int
    layer: int = 0
    depth: int = 1
    stage: int = 0
    stages: int = 1
    out_dim: int | None = None  # where the width changes: MERGE
    hidden: int | None = None  # the feed-forward network's hidden width: FFN
    heads: int = 0  # ATTENTION and QKV
    cell: LatticeCell | None = None
    recall: tuple[nn.Module, ...] = ()  # what gradient checkpointing may run again, with the same input: the blocks
    branch: tuple[str, ...] = ()  # neighbours silenced by a mechanism that says `silences = True`
    freed: type[nn.Module] | None = None  # class the block takes when a shared neighbour cannot be silenced
    wants: Mapping[str, Any] = field(default_factory=dict[str, Any])  # attributes set on the parent when a graft lands
    whole: bool = True  # the module sees all tokens of the image, not one window
    before: bool = False  # wrappers go before the module at `path`, not after it
    plain: str = ""  # why the module here cannot be replaced; empty when it can
    fit: Callable[[nn.Module, nn.Module], nn.Module] | None = None  # see `dress`
    resize: Callable[[nn.Module, int, int], nn.Module] | None = None  # (attention, heads, head_dim) -> attention
    merging: Merging | None = None
    sets: SetsCell | None = None  # text and image tokens in one sequence
    tail: bool = False  # FFN: the module is the network's last step alone
    handover: Handover | None = None  # QKV, where the host has three projections; shared by their three sites
    part: int = 0  # which of the three this is, in the order they are called
    absent: Tensor | None = None  # what stands for no positions: POSITION

    def dress(self, new: nn.Module, old: nn.Module) -> nn.Module:
        """Clothe a plain module in the host's manners, where it has any."""
        return new if self.fit is None else self.fit(new, old)


@runtime_checkable
class Mechanism(Protocol):
    """What every config in `mechanisms/` offers."""

    def seams(self, preserve: bool) -> tuple[Seam, ...]:
        """Say where it sits; a host must offer every one of these seams."""
        ...

    def takes(self, site: Site) -> bool:
        """Tell whether it wants this site, of those at its seams."""
        ...

    def replaces(self, preserve: bool) -> bool:
        """Tell whether it takes the place of what is there; replacements are grafted first, wrappers after."""
        ...

    def graft(self, site: Site, old: Any, *, preserve: bool) -> Any:
        """Return what to put at the site."""
        ...


_SPANS = {
    "all": (0, 1, 1),
    "lower": (0, 1, 2),
    "upper": (1, 2, 2),
    "low": (0, 1, 3),
    "mid": (1, 2, 3),
    "high": (2, 3, 3),
}
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def chosen(site: Site, layers: Layers | None, default: Layers = "all") -> bool:
    """Tell whether a layer selection includes the site's layer."""
    return site.layer in pick(default if layers is None else layers, site.depth)


def pick(layers: Layers, depth: int) -> frozenset[int]:
    """Turn a layer selection into layer indices, counted from 0 over all stages.

    Takes `all`, `lower`/`upper` (halves; an odd middle goes to upper), `low`/`mid`/`high` (thirds), a list such as
    "2-5,8", or a tuple of indices.
    """
    if isinstance(layers, str) and layers in _SPANS:
        start, stop, parts = _SPANS[layers]
        return frozenset(range(start * depth // parts, stop * depth // parts))
    chosen = _listed(layers) if isinstance(layers, str) else [range(i, i + 1) for i in layers]
    picked = frozenset(i for span in chosen for i in span)
    outside = sorted(i for i in picked if not 0 <= i < depth)
    if outside:
        raise GlocalError(f"layer {outside[0]} is not in a host of {depth} layers; they run from 0 to {depth - 1}.")
    if not picked:
        raise GlocalError(f"layers {layers!r} chooses no layer. Give at least one of 0 to {depth - 1}.")
    return picked


def _listed(layers: str) -> list[range]:
    spans: list[range] = []
    for part in layers.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match or (match[2] and int(match[2]) < int(match[1])):
            names = ", ".join(_SPANS)
            raise GlocalError(f"layers {layers!r} is not understood. Use {names}, or indices such as '2-5,8'.")
        spans.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return spans
