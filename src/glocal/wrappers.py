"""Thin modules around a host's own: transparent to the host, to its checkpoints and to `deepcopy`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from glocal.site import Handover, LatticeCell


class OnLattice(nn.Module):
    """Give `inner`, whose forward takes (tokens, lattice), the lattice of the pass under way."""

    def __init__(self, inner: nn.Module, cell: LatticeCell) -> None:
        super().__init__()
        self.inner = inner
        self.cell = cell
        self.register_load_state_dict_pre_hook(_accept_host_names)

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:  # a host's extra arguments are not ours
        return self.inner(tokens, self.cell.read())


class FirstOfThree(nn.Module):
    """Compute queries, keys and values in place of the projection to queries; see `Handover`."""

    def __init__(self, inner: nn.Module, handover: Handover) -> None:
        super().__init__()
        self.inner = inner
        self.handover = handover

    def forward(self, tokens: Tensor) -> Tensor:
        queries, keys, values = self.inner(tokens).chunk(3, dim=-1)
        self.handover.give(keys, values)
        return queries


class LaterOfThree(nn.Module):
    """Hand out keys or values that `FirstOfThree` computed."""

    def __init__(self, handover: Handover, part: int) -> None:
        super().__init__()
        self.handover = handover
        self.part = part

    def forward(self, tokens: Tensor) -> Tensor:
        return self.handover.take(self.part)


class Wrapper(nn.Module):
    """A host's module with something beside it.

    Unknown attributes are those of the host's module, and its own parameter names load too, so a wrapped module
    still looks like the module it wraps.
    """

    def __init__(self, host: nn.Module) -> None:
        super().__init__()
        self.host = host
        self.register_load_state_dict_pre_hook(_accept_host_names)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("host"), name)


class After(Wrapper):
    """Run the host's module, then `new` on its output; extra arguments go to the host's module."""

    def __init__(self, host: nn.Module, new: nn.Module) -> None:
        super().__init__(host)
        self.new = new

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.new(self.host(x, *args, **kwargs))


class Before(Wrapper):
    """Run `new` on what enters the host's module."""

    def __init__(self, host: nn.Module, new: nn.Module) -> None:
        super().__init__(host)
        self.new = new

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.host(self.new(x), *args, **kwargs)


class Beside(Wrapper):
    """Add what `new` makes of the same input to the output of the host's module, or to the first of its outputs."""

    def __init__(self, host: nn.Module, new: nn.Module) -> None:
        super().__init__(host)
        self.new = new

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.host(*args, **kwargs)
        more = self.new(first_input(args, kwargs))
        return (out[0] + more, *out[1:]) if isinstance(out, tuple) else out + more


class OnTokens(nn.Module):
    """Let a module of (B, N, C) tokens work on a (B, H, W, C) map."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1, 2)).view(x.shape)


class OnMap(nn.Module):
    """Let a module of (B, C, H, W) maps take and give channels-last maps; `first` leaves the input as it is."""

    def __init__(self, inner: nn.Module, *, first: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.first = first
        self.register_load_state_dict_pre_hook(_accept_host_names)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.permute(0, 3, 1, 2)
        return self.inner(x).permute(0, 2, 3, 1)


def first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Find the tokens among a call's arguments: the first, by place or by the name transformers gives them."""
    return args[0] if args else kwargs["hidden_states"]


def _accept_host_names(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Hand names that are not the wrapper's own to the module that stands for the host's."""
    inside = "host" if isinstance(module, Wrapper) else "inner"
    own = tuple(f"{prefix}{name}." for name, _ in module.named_children())
    for key in [key for key in state if key.startswith(prefix) and not key.startswith(own)]:
        state[f"{prefix}{inside}.{key[len(prefix) :]}"] = state.pop(key)
