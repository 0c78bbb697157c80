"""The middle of a folded LocalFFN: activation, depth-wise convolution, activation and the mean for its gate."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glocal.kernels.depthwise import WIDEST
from glocal.kernels.dispatch import pays, there, working_type
from glocal.lattice import Lattice

_KINDS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.Hardswish: 1, nn.ReLU6: 2, nn.GELU: 3}


def number(act: nn.Module) -> int | None:
    """Give an activation's number, as kernels know it; None for another, or for GELU's approximation."""
    return _KINDS.get(type(act)) if getattr(act, "approximate", "none") == "none" else None


def hidden_takes(tokens: Tensor, conv: nn.Conv2d, before: nn.Module, after: nn.Module) -> bool:
    """Tell whether one kernel can do it: activations it knows, and exact GELU."""
    if not pays(tokens):
        return False
    return conv.kernel_size[0] <= WIDEST and all(number(act) is not None for act in (before, after))


def hidden(
    tokens: Tensor, conv: nn.Conv2d, before: nn.Module, after: nn.Module, lattice: Lattice, *, pool: bool
) -> tuple[Tensor, Tensor]:
    """Pass (B, N, C) tokens through the activations and the convolution between them; prefix tokens pass as they are.

    The second result is the mean over patch tokens, (B, C), or empty without `pool`.
    """
    from glocal.kernels.hidden_triton import hidden_tokens

    lattice.check(tokens, traced=True)  # a kernel finds its way by the lattice alone
    tokens = tokens.to(working_type(tokens))
    kinds = (number(before) or 0, number(after) or 0)
    sizes = (lattice.height, lattice.width, lattice.prefix)
    with there(tokens):
        out, mean = hidden_tokens(tokens, conv.weight, conv.bias, *sizes, *kinds, pool)
    return out, mean


def hidden_reference(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, before: nn.Module, after: nn.Module, lattice: Lattice
) -> tuple[Tensor, Tensor]:
    """Compute the same in plain PyTorch."""
    aux, patch_map = lattice.split(tokens)
    patch_map = after(F.conv2d(before(patch_map), weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0]))
    return lattice.join(aux, patch_map), patch_map.mean((2, 3))
