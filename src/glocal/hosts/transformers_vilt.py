"""transformers' ViLT: text and image tokens in one sequence, whose patches are drawn in random order.

Its image tokens keep no place, so what needs a lattice is refused; Context Broadcasting has its sets of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from torch import nn

from glocal.site import Seam, SetsCell, Site


def trunk_of(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Find ViLT's trunk and its path: the model itself or a part of it."""
    for path, module in model.named_modules():
        kinds = type(module).__mro__
        if any(kind.__name__ == "ViltModel" and kind.__module__.startswith("transformers.") for kind in kinds):
            return path, module
    return None


def sites(model: nn.Module) -> Iterator[Site]:
    """List what the host offers."""
    found = trunk_of(model)
    assert found is not None
    path, trunk = found[0] + "." * bool(found[0]), cast("Any", found[1])
    blocks: list[Any] = list(trunk.encoder.layer)
    cell, dim = SetsCell(trunk.embeddings), int(trunk.config.hidden_size)
    reason = "ViLT draws its patches in random order, so they have no neighbours to be local with"
    recall = tuple(block.layernorm_before for block in blocks)
    for i in range(len(blocks)):
        at: dict[str, Any] = {"layer": i, "depth": len(blocks), "dim": dim, "sets": cell, "recall": recall}
        yield Site(Seam.MIXED, f"{path}encoder.layer.{i}.attention.output.dense", **at)
        yield Site(Seam.FFN, f"{path}encoder.layer.{i}.output.dense", **at, plain=reason, tail=True)
