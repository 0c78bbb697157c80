"""Watch a model attend while its fused kernel stays on; the host is not changed, and its outputs keep every bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from glocal.errors import GlocalError
from glocal.explain.capture import Capture, Plain, Weights, unseen
from glocal.explain.keep import Fuse, Heads, Reduce, keep, select
from glocal.explain.look import Gradient, Look
from glocal.explain.places import Place, places
from glocal.explain.torch_attention import torch_attention
from glocal.explain.windows import Windows
from glocal.lattice import Lattice
from glocal.site import Layers, pick


class Watch:
    """The looks of the last pass, as a sequence; made by `watch`."""

    def __init__(self, model: nn.Module, options: _Options) -> None:
        self._model = model
        self._options = options
        self._places: list[Place] = []
        self._running: list[Place | None] = []
        self._looks: dict[str, Look] = {}
        self._handles: list[RemovableHandle] = []
        self._capture: Capture | None = None
        self._hidden: list[Any] = []

    def __enter__(self) -> Watch:
        self._places, self._handles = places(self._model)
        try:
            wanted = self._options.choose(self._places)
        except GlocalError:
            self._leave()
            raise
        self._handles.append(self._model.register_forward_pre_hook(self._begin))
        for place in wanted:
            module = place.module
            self._handles.append(module.register_forward_pre_hook(_Enter(self, place), with_kwargs=True))
            self._handles.append(module.register_forward_hook(_Exit(self, place), with_kwargs=True, always_call=True))
        self._capture = Capture(self._report, self._listening)
        self._capture.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._capture is not None:
            self._capture.__exit__(kind, error, trace)
        self._capture = None  # it points back at us, and maps should go when the last one looks away
        self._leave()

    def _leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._running.clear()

    def __len__(self) -> int:
        return len(self._looks)

    def __iter__(self) -> Iterator[Look]:
        return iter(self.looks())

    def __getitem__(self, index: int | str) -> Look:
        if isinstance(index, str):
            if index not in self._looks:
                raise GlocalError(f"no attention was seen at {index!r}. Seen: {', '.join(self._looks) or 'none'}.")
            return self._looks[index]
        return self.looks()[index]

    def looks(self, group: str | None = None) -> list[Look]:
        """Give the last pass's looks, first layer first; group "self" is the chain of layers alone."""
        order = {place.path: i for i, place in enumerate(self._places)}
        found = [each for each in self._looks.values() if group in (None, each.group)]
        return sorted(found, key=lambda look: order[look.path])

    @property
    def maps(self) -> list[Tensor]:
        """The chain's maps, first layer first: (B, heads, N, N) each."""
        return [look.square for look in self.looks("self")]

    @property
    def gradients(self) -> list[Tensor]:
        """The chain's gradients, laid out like `maps`."""
        return [look.square_gradient for look in self.looks("self")]

    @property
    def lattices(self) -> list[Lattice | None]:
        """The chain's lattices, first layer first."""
        return [look.queries for look in self.looks("self")]

    def reshape_transform(self, tokens: Tensor) -> Tensor:
        """Lay a layer's output out as (B, C, H, W), as pytorch-grad-cam asks for; use it inside the `with` block."""
        known = {lattice for place in self._places if (lattice := _now(place)) is not None}
        if tokens.ndim == 3:
            for lattice in known:
                if len(lattice) == tokens.shape[1]:
                    return lattice.split(tokens)[1]
        if tokens.ndim == 4:
            last = any((each.height, each.width) == tuple(tokens.shape[1:3]) for each in known)
            first = any((each.height, each.width) == tuple(tokens.shape[2:4]) for each in known)
            if last and not first:
                return tokens.permute(0, 3, 1, 2)
            return tokens
        raise GlocalError(
            f"{tuple(tokens.shape)} fits none of the model's lattices: {', '.join(map(str, known)) or 'none seen'}."
        )

    # What the hooks call.

    def _begin(self, *_: Any) -> None:
        if not _in_backward():
            self._looks.clear()
            self._running.clear()

    def _listening(self) -> bool:
        return bool(self._running) and self._running[-1] is not None

    def _enter(self, place: Place) -> None:
        # Gradient checkpointing runs blocks again during backward: nothing new to see.
        self._running.append(None if _in_backward() else place)
        if isinstance(place.module, nn.MultiheadAttention):
            guard = unseen()
            guard.__enter__()
            self._hidden.append(guard)

    def _exit(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        running = self._running.pop() if self._running else None
        if isinstance(place.module, nn.MultiheadAttention):
            self._hidden.pop().__exit__(None, None, None)
            if running is not None:
                self._note(place, Plain(torch_attention(place.module, args, kwargs)), None, None)

    def _report(self, weights: Weights, value: Tensor | None, out: Tensor) -> None:
        place = self._running[-1]
        assert place is not None
        self._note(place, weights, value, out)

    @torch.no_grad()
    def _note(self, place: Place, weights: Weights, value: Tensor | None, out: Tensor | None) -> None:
        windows = place.windows()
        queries, keys = place.lattices(weights.shape[2], weights.shape[3], windows)
        has_class = place.class_token and queries is not None and queries.prefix > 0
        kept, reduced = keep(weights, self._options.kept(queries, keys, windows))
        look = Look(
            place.path, place.group, place.layer, place.stage, queries, keys, has_class, windows, kept, None, reduced
        )
        if self._options.each is not None:
            self._options.each(look)
            return
        self._looks[place.path] = look
        if self._options.gradients and out is not None and out.requires_grad:
            out.register_hook(Gradient(look, value, self._options.heads, self._options.device))


@dataclass(frozen=True)
class _Options:
    layers: Layers
    paths: str
    heads: Heads
    device: torch.device | str | None
    reduce: Reduce | None
    each: Callable[[Look], None] | None
    gradients: bool

    def choose(self, listed: list[Place]) -> list[Place]:
        if self.layers == ():
            return []
        chosen = [place for place in listed if fnmatchcase(place.path, self.paths)]
        if not chosen:
            raise GlocalError(
                f"paths={self.paths!r} fits no attention. There are: {', '.join(p.path for p in listed)}."
            )
        return [place for place in chosen if place.layer in self._picked(place)]

    def _picked(self, place: Place) -> frozenset[int]:
        if place.group != "self" and self.layers != "all":
            depth = place.depth  # pools and the like stand outside the count of layers
            return pick(self.layers, depth) if depth > 1 else frozenset()
        return pick(self.layers, place.depth) if self.layers != "all" else frozenset({place.layer})

    def kept(self, queries: Lattice | None, keys: Lattice | None, windows: Windows | None) -> Fuse:
        return Fuse(self.heads, self.device, self.reduce, queries, keys, windows)


def watch(
    model: nn.Module,
    *,
    layers: Layers = "all",
    paths: str = "*",
    heads: Heads = None,
    device: torch.device | str | None = None,
    reduce: Reduce | None = None,
    each: Callable[[Look], None] | None = None,
    gradients: bool = False,
) -> Watch:
    """Record the attention of every layer inside a `with` block, for any host, with the fused kernel on.

    `layers` and `paths` (a pattern such as "*.encoder.*") choose attentions. `heads` keeps some heads, or fuses them by
    "mean", "max" or "min". `device="cpu"` moves what is kept. `reduce` keeps what it makes of a few queries at a time
    instead of the map, so memory stays bounded; `each` takes every look as it comes, and nothing is kept at all.
    `gradients` also keeps the gradient of what is later called backward on.
    """
    if gradients and (reduce is not None or each is not None or isinstance(heads, str)):
        raise GlocalError("gradients=True keeps whole maps; it does not go with reduce, each, or fused heads.")
    select(heads)
    return Watch(model, _Options(layers, paths, heads, device, reduce, each, gradients))


class _Enter:
    """A hook as an object: a closure would survive `deepcopy` of the model."""

    def __init__(self, watch: Watch, place: Place) -> None:
        self._watch, self._place = watch, place

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._watch._enter(self._place)

    def __deepcopy__(self, memo: Any) -> _Nothing:
        return _Nothing()


class _Exit(_Enter):
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> None:
        self._watch._exit(self._place, args, kwargs)


class _Nothing:
    """What a copy of a watched model gets in place of our hooks."""

    def __call__(self, *_: Any) -> None:
        return None


def _now(place: Place) -> Lattice | None:
    try:
        return place.lattice(1 << 40)
    except GlocalError:
        return None  # no image has passed yet


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
