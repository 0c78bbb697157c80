"""The middle of a LocalFFN in training, from first norm to gate: fused where that pays, else left to its modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.kernels.depthwise import WIDEST
from glocal.kernels.dispatch import GRID, pays, there, working_type
from glocal.kernels.hidden import number
from glocal.lattice import Lattice


def batch_hidden_takes(tokens: Tensor, conv: nn.Conv2d, norms: Sequence[nn.Module], acts: Sequence[nn.Module]) -> bool:
    """Tell whether the kernels can do it: plain norms that see this batch alone, and one activation they know."""
    kinds = {number(act) for act in acts}
    plain = all(type(norm) is nn.BatchNorm2d and norm.training and norm.affine for norm in norms)
    known = plain and len(kinds) == 1 and None not in kinds and conv.bias is None
    small = conv.kernel_size[0] <= WIDEST and tokens.shape[0] <= GRID
    return known and small and pays(tokens, "batch")


def batch_hidden(
    tokens: Tensor,
    norms: tuple[nn.BatchNorm2d, nn.BatchNorm2d],
    conv: nn.Conv2d,
    act: nn.Module,
    squeeze: Sequence[Tensor],
    lattice: Lattice,
) -> Tensor:
    """Pass (B, N, C) tokens through norm, activation, convolution, norm, activation and gate.

    Prefix tokens become zero. `squeeze` are the weights and biases of SE's two layers; none, no gate. The running
    statistics of the norms move.
    """
    from glocal.kernels.batch_hidden_triton import batch_hidden_tokens

    lattice.check(tokens, traced=True)  # a kernel finds its way by the lattice alone
    tokens = tokens.to(working_type(tokens)).contiguous()
    first, second = ([norm.weight, norm.bias] for norm in norms)
    eps, kind = [norm.eps for norm in norms], number(act) or 0
    sizes = (lattice.height, lattice.width, lattice.prefix)
    with there(tokens), torch.autocast(tokens.device.type, enabled=False):
        hidden, _, mean, var, mean2, var2, _ = batch_hidden_tokens(
            tokens, first, conv.weight, second, eps, list(squeeze), *sizes, kind
        )
    patches = tokens.shape[0] * lattice.height * lattice.width
    for norm, seen in zip(norms, ((mean, var), (mean2, var2)), strict=True):
        _follow(norm, *seen, patches)
    return hidden


def batch_norm(tokens: Tensor, norm: nn.BatchNorm2d, lattice: Lattice) -> Tensor:
    """Normalise the patches of (B, N, C) over the batch; prefix tokens become zero, the running statistics move."""
    from glocal.kernels.batch_hidden_triton import batch_tokens

    lattice.check(tokens, traced=True)
    tokens = tokens.contiguous()
    with there(tokens):
        out, mean, var = batch_tokens(tokens, [norm.weight, norm.bias], norm.eps, lattice.prefix)
    _follow(norm, mean, var, tokens.shape[0] * lattice.height * lattice.width)
    return out


def batch_norm_reference(tokens: Tensor, norm: Sequence[Tensor], eps: float, lattice: Lattice) -> Tensor:
    """Compute the same in plain PyTorch."""
    aux, x = lattice.split(tokens)
    return lattice.join(torch.zeros_like(aux), F.batch_norm(x, None, None, *norm, training=True, eps=eps))


def batch_hidden_reference(
    tokens: Tensor,
    first: Sequence[Tensor],
    taps: Tensor,
    second: Sequence[Tensor],
    eps: Sequence[float],
    squeeze: Sequence[Tensor],
    act: nn.Module,
    lattice: Lattice,
) -> Tensor:
    """Compute the same in plain PyTorch."""
    aux, x = lattice.split(tokens)
    x = act(F.batch_norm(x, None, None, *first, training=True, eps=eps[0]))
    x = F.conv2d(x, taps, padding=taps.shape[-1] // 2, groups=taps.shape[0])
    x = act(F.batch_norm(x, None, None, *second, training=True, eps=eps[1]))
    if squeeze:
        reduce, bias, expand, bias2 = squeeze
        held = F.relu(F.linear(x.mean((2, 3)), reduce, bias))
        x = x * F.hardsigmoid(F.linear(held, expand, bias2))[:, :, None, None]
    return lattice.join(torch.zeros_like(aux), x)


@torch.no_grad()
def _follow(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, count: int) -> None:
    """Move a norm's running statistics towards those of a batch, as the norm itself would."""
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    step = norm.momentum or 0.0
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        step = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    norm.running_mean.copy_(norm.running_mean + step * (mean - norm.running_mean))
    norm.running_var.copy_(norm.running_var + step * (var * (count / max(count - 1, 1)) - norm.running_var))
