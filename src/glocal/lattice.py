"""Where tokens sit: prefix tokens first, then height x width patches in row-major order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.errors import LatticeError


@dataclass(frozen=True)
class Lattice:
    """A token sequence's geometry. Nobody guesses it from the token count."""

    height: int
    width: int
    prefix: int = 0

    def __len__(self) -> int:
        return self.prefix + self.height * self.width

    def check(self, tokens: Tensor, *, traced: bool = False) -> None:
        """Raise when the tokens do not fill the lattice; inside a graph only where that must be `traced`."""
        # Inside a traced graph the sizes are symbols: comparing them would pin the graph to one size.
        asked = traced or not torch.compiler.is_compiling()
        if asked and tokens.shape[1] != self.prefix + self.height * self.width:
            raise LatticeError(
                f"{tokens.shape[1]} tokens do not fill a {self.height}x{self.width} lattice with {self.prefix} "
                f"prefix tokens ({len(self)}). Patch dropout leaves holes; set patch_drop_rate=0."
            )

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Part (B, N, C) tokens into (B, P, C) aux tokens and a (B, C, H, W) patch map; both are views."""
        self.check(tokens)
        # Rows and columns first, channels after: the other way round a batch of one gets strides that no convolution
        # takes for channels-last, and it copies the map.
        images, _, dim = tokens.shape
        patches = tokens[:, self.prefix :].view(images, self.height, self.width, dim)  # a view at any strides
        return tokens[:, : self.prefix], patches.permute(0, 3, 1, 2)

    def join(self, aux: Tensor, patch_map: Tensor) -> Tensor:
        """Undo `split`."""
        patches = patch_map.permute(0, 2, 3, 1).flatten(1, 2)  # (B, H * W, C)
        return torch.cat((aux, patches), dim=1) if self.prefix else patches


def fill_patches(patch_map: Tensor, patch: int) -> Tensor:
    """Pad a (B, C, H, W) map with zeros below and right, so that whole patches cover it."""
    height, width = patch_map.shape[-2:]
    # Not `-width % patch`: with sizes left open, remainders of remainders cost an export minutes of algebra.
    below, right = ((side + patch - 1) // patch * patch - side for side in (height, width))
    return F.pad(patch_map, (0, right, 0, below))


def is_open(*sides: int) -> bool:
    """Tell whether a graph is being traced for every size: it must not ask then whether one is the usual size."""
    return any(isinstance(side, torch.SymInt) for side in sides)
