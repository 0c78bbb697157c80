"""The sites of a feed-forward network, the same on every host that uses timm's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from timm.layers import GluMlp, Mlp
from timm.layers.mlp import GatedMlp, SwiGLU
from torch import nn

from glocal.site import Seam, Site
from glocal.wrappers import OnLattice, Wrapper


def feed_forward(network: nn.Module, path: str, **at: Any) -> Iterator[Site]:
    """Yield FFN and HIDDEN for a network at `path`; one that is no plain Mlp keeps its place but not its insides."""
    network = bare(network)
    shared = {key: value for key, value in at.items() if key not in ("branch", "freed", "dim")}
    if type(network) is Mlp and isinstance(network.fc1, nn.Linear):
        hidden = network.fc1.out_features
        yield Site(Seam.FFN, path, hidden=hidden, **at)
        yield Site(Seam.HIDDEN, f"{path}.act", dim=hidden, **shared)
        return
    yield Site(Seam.FFN, path, **at, plain=not_plain(network))
    if isinstance(network, (GluMlp, SwiGLU, GatedMlp)) and isinstance(network.fc2, nn.Linear):
        # Gated networks multiply after the activation: what enters their last linear layer is the hidden map.
        yield Site(Seam.HIDDEN, f"{path}.norm", dim=network.fc2.in_features, **shared)


def not_plain(module: nn.Module) -> str:
    """Say why a module cannot be replaced."""
    if isinstance(module, OnLattice):
        return f"an earlier graft put {type(module.inner).__name__} there"
    return f"{type(module).__name__} is not the plain module this mechanism knows"


def bare(module: nn.Module) -> nn.Module:
    """Look through wrappers that earlier grafts put around a host's module."""
    while isinstance(module, Wrapper):
        module = module.host
    return module
