"""Lattices of models that are no hosts: transformers' ViT and DETR, and timm's others that embed patches.

They are read from what passes through the patch embedding. ViLT is left out on purpose: it draws its patches in random
order, so its tokens keep no place on a lattice.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from glocal.lattice import Lattice

_CLASS_TOKEN = ("vit", "deit", "dinov2", "dinov2_with_registers", "beit", "data2vec-vision", "vit_msn", "ijepa")


class Geometry:
    """Follows the patch map of one model from its patch projection, without importing transformers."""

    def __init__(self, kind: str, projection: nn.Module, class_token: bool | None = None) -> None:
        self._kind = kind
        self._projection = projection
        self._map: tuple[int, int] | None = None
        self.class_token = kind != "detr" if class_token is None else class_token

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

    def _write(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if self._kind == "timm":
            size = args[0].shape[-2:]
            self._map = tuple(output.shape[1:3]) if output.ndim == 4 else tuple(module.dynamic_feat_size(size))
        else:
            self._map = (output.shape[-2], output.shape[-1]) if output.ndim == 4 else None


def geometry_of(model: nn.Module) -> Geometry | None:
    """Find the geometry of a transformers model, or of a timm model that embeds patches; nothing for any other."""
    embed: Any = getattr(model, "patch_embed", None)
    if hasattr(embed, "dynamic_feat_size"):  # EVA, BEiT and others that are no hosts of glocal's
        return Geometry("timm", embed, getattr(model, "cls_token", None) is not None)
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
