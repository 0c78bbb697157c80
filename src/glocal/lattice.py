"""Where tokens sit: prefix tokens first, then height x width patches in row-major order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from glocal.errors import LatticeError


@dataclass(frozen=True)
class Lattice:
    """A token sequence's geometry. Nobody guesses it from the token count."""

    height: int
    width: int
    prefix: int = 0

    def __len__(self) -> int:
        return self.prefix + self.height * self.width

    def check(self, tokens: Tensor) -> None:
        """Raise when the tokens do not fill the lattice."""
        # Inside a traced graph the sizes are symbols: comparing them would pin the graph to one size.
        if not torch.compiler.is_compiling() and tokens.shape[1] != self.prefix + self.height * self.width:
            raise LatticeError(
                f"{tokens.shape[1]} tokens do not fill a {self.height}x{self.width} lattice with {self.prefix} "
                f"prefix tokens ({len(self)}). Patch dropout leaves holes; set patch_drop_rate=0."
            )

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Part (B, N, C) tokens into (B, P, C) aux tokens and a (B, C, H, W) patch map; both are views."""
        self.check(tokens)
        # Rows and columns first, channels after: the other way round a batch of one gets strides that no convolution
        # takes for channels-last, and it copies the map.
        patches = cast("Tensor", tokens[:, self.prefix :].unflatten(1, (self.height, self.width)))  # (B, H, W, C)
        return tokens[:, : self.prefix], patches.permute(0, 3, 1, 2)

    def join(self, aux: Tensor, patch_map: Tensor) -> Tensor:
        """Undo `split`."""
        patches = patch_map.permute(0, 2, 3, 1).flatten(1, 2)  # (B, H * W, C)
        return torch.cat((aux, patches), dim=1) if self.prefix else patches
