"""Depth-wise convolution in token layout: a kernel where it pays, else plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.kernels.dispatch import pays, there, working_type
from glocal.lattice import Lattice

WIDEST = 7  # the kernel sums at most seven taps side by side


def depthwise(tokens: Tensor, weight: Tensor, lattice: Lattice) -> Tensor:
    """Convolve the patch tokens of (B, N, C) with a (C, 1, k, k) weight; prefix tokens pass as they are."""
    if pays(tokens):
        return depthwise_groups(tokens, (weight,), (tokens.shape[-1],), 1, lattice)
    aux, patch_map = lattice.split(tokens)
    return lattice.join(aux, _convolve(patch_map, weight))


def depthwise_groups(
    tokens: Tensor, weights: Sequence[Tensor | None], widths: Sequence[int], parts: int, lattice: Lattice
) -> Tensor:
    """Convolve groups of channels at their own scales; None leaves a group as it is.

    A row of tokens has `parts` parts (q, k and v, say), and each part holds widths[i] channels of group i, one group
    after the other.
    """
    small = all(weight is None or weight.shape[-1] <= WIDEST for weight in weights)
    if not (pays(tokens) and small):
        return depthwise_reference(tokens, weights, widths, parts, lattice)
    from glocal.kernels.depthwise_triton import depthwise_tokens

    lattice.check(tokens, traced=True)  # a kernel finds its way by the lattice alone
    tokens = _rows(tokens.to(working_type(tokens)))
    given = [tokens.new_empty(0) if weight is None else weight for weight in weights]
    with there(tokens):
        return depthwise_tokens(tokens, given, list(widths), parts, lattice.height, lattice.width, lattice.prefix)


def depthwise_reference(
    tokens: Tensor, weights: Sequence[Tensor | None], widths: Sequence[int], parts: int, lattice: Lattice
) -> Tensor:
    """Compute the same in plain PyTorch, on a channels-last view of the tokens."""
    aux, patch_map = lattice.split(tokens)
    if len(weights) == 1:
        return lattice.join(aux, _convolve(patch_map, weights[0]))
    groups = [_convolve_share(*each) for each in zip(_shares(patch_map, widths, parts), weights, strict=True)]
    return lattice.join(aux, torch.cat(groups, dim=-1).flatten(3).permute(0, 3, 1, 2))


def overwrite(tokens: Tensor, weight: Tensor, lattice: Lattice) -> Tensor:
    """Convolve and overwrite the patch tokens: no memory for a join, which a processor pays for."""
    images, _, dim = tokens.shape
    patches = tokens[:, lattice.prefix :].view(images, lattice.height, lattice.width, dim)
    size = weight.shape
    convolved = torch.conv2d(patches.permute(0, 3, 1, 2), weight, None, 1, size[3] // 2, 1, size[0])
    patches.copy_(convolved.permute(0, 2, 3, 1))
    return tokens


def depthwise_groups_in_place(
    tokens: Tensor, weights: Sequence[Tensor | None], widths: Sequence[int], parts: int, lattice: Lattice
) -> Tensor:
    """Convolve groups of channels and overwrite the patch tokens."""
    _, patch_map = lattice.split(tokens)
    for share, weight in zip(_shares(patch_map, widths, parts), weights, strict=True):
        if weight is not None:
            share.copy_(_convolve_share(share, weight))
    return tokens


def _shares(patch_map: Tensor, widths: Sequence[int], parts: int) -> tuple[Tensor, ...]:
    """Give each group's view of the patches, (B, H, W, parts, width): channels last, as convolutions like them."""
    return patch_map.permute(0, 2, 3, 1).unflatten(3, (parts, -1)).split(tuple(widths), dim=-1)


def _convolve_share(share: Tensor, weight: Tensor | None) -> Tensor:
    """Convolve (B, H, W, parts, width)."""
    if weight is None:
        return share
    convolved = _convolve(share.flatten(3).permute(0, 3, 1, 2), weight)
    return convolved.permute(0, 2, 3, 1).unflatten(3, (share.shape[3], -1))


@torch.no_grad()
def lay_taps(weight: Tensor) -> None:
    """Put the channels of a (C, 1, k, k) weight side by side in memory, as the kernel reads them; its values stay."""
    if weight.is_cuda:
        weight.data = weight.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


def _convolve(patch_map: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return patch_map
    return F.conv2d(patch_map, weight, padding=weight.shape[-1] // 2, groups=weight.shape[0])


def _rows(tokens: Tensor) -> Tensor:
    return tokens if tokens.stride(-1) == 1 else tokens.contiguous()
