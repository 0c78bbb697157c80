"""Lattices of transformers' models, read from what passes through them: ViT and its kin, and DETR.

ViLT is left out on purpose: it draws its patches in random order, so its tokens keep no place on a lattice.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from glocal.lattice import Lattice

_CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2_with_registers", "beit", "data2vec-vision", "vit_msn", "ijepa")


class Geometry:
    """Follows the patch map of one model from its patch projection, without importing transformers."""

    def __init__(self, kind: str, projection: nn.Module) -> None:
        self._kind = kind
        self._projection = projection
        self._map: tuple[int, int] | None = None
        self.class_token = kind != "detr"

    def install(self) -> list[RemovableHandle]:
        """Hook the projection that makes the map."""
        return [self._projection.register_forward_hook(self._write)]

    def group(self, path: str) -> str:
        """Keep DETR's decoder apart from the encoder's chain of layers."""
        if self._kind != "detr" or "decoder" not in path:
            return "self"
        return "cross" if "encoder_attn" in path else "decoder"

    def lattice(self, count: int) -> Lattice | None:
        """Give the lattice of `count` tokens, where the map accounts for them: what is not map is prefix."""
        if self._map is None or count < self._map[0] * self._map[1]:
            return None
        height, width = self._map
        return Lattice(height, width, count - height * width)

    def _write(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._map = (output.shape[-2], output.shape[-1]) if output.ndim == 4 else None


def geometry_of(model: nn.Module) -> Geometry | None:
    """Find the geometry of a transformers model; nothing for any other."""
    kind = str(getattr(getattr(model, "config", None), "model_type", ""))
    if kind == "detr":
        return _detr(model)
    if kind in _CLASS_TOKEN:
        for path, module in model.named_modules():
            # Only the patch projection is a convolution over the image.
            if isinstance(module, nn.Conv2d) and path.endswith("projection"):
                return Geometry(kind, module)
    return None


def _detr(model: nn.Module) -> Geometry | None:
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and path.endswith("input_projection"):
            return Geometry("detr", module)
    return None
