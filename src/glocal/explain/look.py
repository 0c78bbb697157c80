"""What one attention did in one pass: its map, whole or in windows, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from glocal.errors import GlocalError
from glocal.explain.between import pooling, spread
from glocal.explain.keep import Heads
from glocal.explain.windows import Windows
from glocal.lattice import Lattice


@dataclass
class Look:
    """What one attention did in one pass."""

    path: str
    group: str
    layer: int
    stage: int
    queries: Lattice | None
    keys: Lattice | None
    class_token: bool
    windows: Windows | None = field(repr=False)
    kept: Tensor = field(repr=False)
    """As recorded: (B, heads, N, M), per window (B * windows, heads, n, n), or what `reduce` made of it."""
    asked: Tensor | None = field(default=None, repr=False)
    reduced: bool = False

    @property
    def attention(self) -> Tensor:
        """The whole map, (B, heads, N, M); windows are laid out on it."""
        return self._whole(self.kept)

    @property
    def gradient(self) -> Tensor:
        """The output's gradient by each weight, laid out like `attention`; there after a backward pass."""
        if self.asked is None:
            raise GlocalError(
                f"no gradient reached {self.path}. Use watch(model, gradients=True), call the model with gradients on, "
                f"and call backward() on one of its outputs before leaving the block."
            )
        return self._whole(self.asked)

    @property
    def square(self) -> Tensor:
        """The whole map over the queries' own tokens, (B, heads, N, N): reduced keys are spread over theirs."""
        if self.queries is None or self.keys is None:
            return self.attention
        return spread(self.attention, self.queries, self.keys)

    @property
    def square_gradient(self) -> Tensor:
        """The gradient over the queries' own tokens: each token gets that of the key which stands for it."""
        gradient = self.gradient
        if self.queries is None or self.keys is None or self.queries == self.keys:
            return gradient
        stands = (pooling(self.queries, self.keys) > 0).to(gradient)
        return gradient @ (stands / stands.sum(dim=0).clamp_min(1))

    @property
    def reach(self) -> int:
        """How many keys a query can see: those of its window, where there are windows."""
        if self.windows is not None:
            return self.windows.window[0] * self.windows.window[1]
        return len(self.keys) if self.keys is not None else self.kept.shape[-1]

    def _whole(self, recorded: Tensor) -> Tensor:
        if self.reduced:
            raise GlocalError(f"the map of {self.path} was reduced as it came, so only `kept` is left of it.")
        return recorded if self.windows is None else self.windows.assemble(recorded)


class Gradient:
    """Turns the gradient of an attention's output into that of the map, which no kernel forms: dL/dA = dL/dO V^T."""

    def __init__(self, look: Look, value: Tensor | None, heads: Heads, device: torch.device | str | None) -> None:
        self._look, self._value, self._heads, self._device = look, value, heads, device

    def __call__(self, gradient: Tensor) -> None:
        if self._value is not None:
            gradient = gradient.detach().reshape(*self._value.shape[:2], -1, self._value.shape[-1])
            gradient = gradient.float() @ self._value.float().transpose(-2, -1)
        if self._heads is not None and not isinstance(self._heads, str):
            gradient = gradient[:, list(self._heads)]
        self._look.asked = gradient.detach().clone().to(self._device or gradient.device)
