"""Deformable convolution: fused on a GPU, else torchvision's operator, or plain PyTorch where it is missing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glocal.kernels.dispatch import fused, recorded, there, working_type


def deform_conv2d(x: Tensor, offset: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Convolve with every tap moved by its offset: (B, 2 * taps, H', W'), (dy, dx) per tap, taps row-major."""
    if fused(x) and weight.shape[1] == x.shape[1]:
        taps = _gathered(x, offset, weight.shape[-1], stride, padding).flatten(3)  # (B, H', W', taps * C)
        return F.linear(taps, weight.permute(0, 2, 3, 1).flatten(1), bias).permute(0, 3, 1, 2)
    operator = _operator()
    if operator is None or (not torch.compiler.is_compiling() and _transformed()):
        return deform_conv2d_reference(x, offset, weight, bias, stride, padding)
    kind, device = working_type(x), x.device.type
    if kind is torch.bfloat16 or (device == "cpu" and kind is torch.float16):
        # The operator has no bfloat16, and on the CPU no half precision at all.
        with torch.autocast(device, enabled=False):
            full = operator(
                x.float(), offset.float(), weight.float(), None if bias is None else bias.float(), stride, padding
            )
        return full.to(kind)
    return operator(
        x, offset.to(x.dtype), weight.to(x.dtype), None if bias is None else bias.to(x.dtype), stride, padding
    )


def deform_conv2d_reference(
    x: Tensor, offset: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int
) -> Tensor:
    """Compute the same from sampled taps, in plain PyTorch."""
    groups = x.shape[1] // weight.shape[1]
    taps = sample_taps_reference(x, offset, kernel=weight.shape[-1], stride=stride, padding=padding)
    taps = taps.unflatten(1, (groups, -1)).flatten(2, 3)  # (B, groups, C / groups * taps, H', W')
    kernel = weight.unflatten(0, (groups, -1)).flatten(2)  # (groups, out / groups, C / groups * taps)
    out = torch.einsum("bgihw,goi->bgohw", taps, kernel).flatten(1, 2)
    return out if bias is None else out + bias[:, None, None]


def sample_taps(x: Tensor, offset: Tensor, *, kernel: int, stride: int, padding: int) -> Tensor:
    """Read each tap of a kernel at its moved place, bilinear and zero outside: (B, C, taps, H', W')."""
    if fused(x):
        return _gathered(x, offset, kernel, stride, padding).permute(0, 4, 3, 1, 2)
    return sample_taps_reference(x, offset, kernel=kernel, stride=stride, padding=padding)


def sample_taps_reference(x: Tensor, offset: Tensor, *, kernel: int, stride: int, padding: int) -> Tensor:
    """Compute the same in plain PyTorch.

    Corners are gathered by index, so a tap that did not move is read exactly; `grid_sample` scales coordinates to
    [-1, 1] and back, which costs about 1e-5 of a pixel.
    """
    height, width = x.shape[-2:]
    out_height, out_width = offset.shape[-2:]
    tap = torch.arange(kernel * kernel, device=x.device)[:, None, None]
    row = torch.arange(out_height, device=x.device)[:, None] * stride - padding + tap // kernel
    column = torch.arange(out_width, device=x.device) * stride - padding + tap % kernel
    # Places in float32 at least: half precision counts to 256 or 2048 without gaps, and an index needs more.
    move = offset.to(torch.promote_types(offset.dtype, torch.float32)).unflatten(1, (-1, 2))  # (B, taps, 2, H', W')
    y, x0 = row + move[:, :, 0], column + move[:, :, 1]
    top, left = y.floor(), x0.floor()
    flat, total = x.flatten(2), torch.zeros((), device=x.device, dtype=x.dtype)
    for dy in (0, 1):
        for dx in (0, 1):
            cy, cx = top + dy, left + dx
            # Not 1 - |y - cy|: its slope is lost where a tap did not move, and there every offset starts.
            share = (y - top if dy else 1 - (y - top)) * (x0 - left if dx else 1 - (x0 - left))
            share = share * ((cy >= 0) & (cy < height) & (cx >= 0) & (cx < width))
            index = (cy.clamp(0, height - 1) * width + cx.clamp(0, width - 1)).long()  # (B, taps, H', W')
            corner = flat.gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1))
            total = total + corner.unflatten(2, (-1, out_height, out_width)) * share[:, None].to(x.dtype)
    return total


def _gathered(x: Tensor, offset: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    from glocal.kernels.deform_triton import gather_taps, run_gather_taps

    patches = x.to(working_type(x)).permute(0, 2, 3, 1)
    patches = patches if patches.stride(-1) == 1 else patches.contiguous()
    operator = gather_taps if recorded(patches, offset) else run_gather_taps
    with there(patches):
        return operator(patches, offset.contiguous(), kernel, stride, padding)


def _transformed() -> bool:
    """Tell whether torch.func differentiates or maps the call: torchvision's operator does not let itself be."""
    level: int | None = torch._C._functorch.maybe_current_level()  # pyright: ignore[reportAttributeAccessIssue]
    return level is not None


def _operator() -> Callable[..., Tensor] | None:
    try:
        from torchvision.ops import deform_conv2d as operator

        torch.ops.torchvision.deform_conv2d  # noqa: B018  the compiled part may be missing
    except (ImportError, AttributeError, RuntimeError):
        return None
    return operator
