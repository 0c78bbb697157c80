"""Kernels prove themselves: on each device their numbers must be those of plain PyTorch before they are used there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from glocal.lattice import Lattice

Family = Literal["tokens", "batch", "deform"]
# Of the norm; bfloat16 keeps eight bits. What a norm's bias changes, the next norm takes back: that gradient is small.
ALLOWED = {"tokens": 0.02, "batch": 0.06, "deform": 0.02}
_SIZES = (2, 256)  # images: little work and much of it are laid out in other ways


# A tracer takes the answer as it is, and does not follow how it was found.
@torch.compiler.assume_constant_result
def trusted(family: Family, kind: torch.dtype, device: str, index: int | None) -> bool:
    """Tell whether a family of kernels gave right numbers on a device; found out once, and a failure is told once."""
    try:
        return _passes(family, kind, device, index)
    except torch.OutOfMemoryError:  # says nothing of the kernels: the next call tries again
        return False


@cache
def _passes(family: Family, kind: torch.dtype, device: str, index: int | None) -> bool:
    place = torch.device(device) if index is None else torch.device(device, index)
    try:
        with torch.cuda.device(place) if device == "cuda" else nullcontext():
            errors = [each for images in _SIZES for _, each in deviations(family, place, kind, images=images)]
        wrong = [each for each in errors if not each <= ALLOWED[family]]  # nan is not <= either
        reason = f"their numbers are {max(wrong):.1%} off" if wrong else ""
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler or driver does not like: plain PyTorch can do the work
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if reason:
        warnings.warn(
            f"glocal's {family} kernels stay off on {place} in {str(kind).split('.')[-1]}: {reason}. "
            f"Plain PyTorch does their work. GLOCAL_KERNELS=0 keeps them off without this trial.",
            stacklevel=2,
        )
    return not reason


def deviations(
    family: Family, device: torch.device, kind: torch.dtype, *, images: int, dim: int = 192, side: int = 14
) -> Iterator[tuple[str, float]]:
    """Give each result's and each gradient's distance from plain PyTorch in float32, relative to its norm."""
    from glocal.kernels.dispatch import plain

    # Whatever the caller is in the middle of: autocast, no gradients, a trace with fake tensors, a count of operations.
    autocast = torch.autocast(device.type, enabled=False)
    with _disable_current_modes(), torch.inference_mode(False), autocast, plain():
        # Not the global generator: a run with kernels must draw what a run without them draws.
        generator = torch.Generator().manual_seed(0)

        def make(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device="cpu").to(device, kind)

        cases = {"tokens": _tokens, "batch": _batch, "deform": _deform}[family]
        for name, fast, slow, leaves in cases(make, images, dim, side):
            for i, error in enumerate(_compare(fast, slow, leaves, slopes=name != INFERENCE)):
                yield f"{name}: {'result' if i == 0 else f'gradient {i}'}", error


Case = tuple[str, Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]
INFERENCE = "hidden tokens"  # the one case without gradients


def _tokens(make: Callable[..., Tensor], images: int, dim: int, side: int) -> Iterator[Case]:
    from glocal.kernels.hidden import hidden_reference
    from glocal.kernels.hidden_triton import hidden_tokens
    from glocal.kernels.mean_triton import mean_tokens
    from glocal.kernels.multi_scale import multi_scale_reference
    from glocal.kernels.multi_scale_triton import multi_scale_tokens

    lattice, width = Lattice(side, side, prefix=1), dim // 3
    sizes = (lattice.height, lattice.width, lattice.prefix)
    tokens, taps = make(images, len(lattice), dim), [make(dim, 1, 3, 3), make(dim, 1, 5, 5)]
    mixes = [make(3 * width, dim) / dim**0.5 for _ in range(3)]

    def fast(x: Tensor, three: Tensor, five: Tensor, *mixes: Tensor) -> Tensor:
        return multi_scale_tokens(x, [x.new_empty(0), three, five], list(mixes), None, *sizes, True)[0]

    def plain(x: Tensor, three: Tensor, five: Tensor, *mixes: Tensor) -> Tensor:
        return torch.cat(multi_scale_reference(x, [None, three, five], mixes, None, lattice), dim=-1).flatten(2)

    yield "scales", fast, plain, [tokens, *taps, *mixes]

    act, bias = nn.Hardswish(), make(dim)
    yield (
        INFERENCE,
        lambda x: hidden_tokens(x, taps[0], bias, *sizes, 1, 1, True)[0],
        lambda x: hidden_reference(x, taps[0].float(), bias.float(), act, act, lattice)[0],
        [tokens],
    )
    yield "mean token", mean_tokens, lambda x: x.mean(1), [tokens]


def _batch(make: Callable[..., Tensor], images: int, dim: int, side: int) -> Iterator[Case]:
    from glocal.kernels.batch_hidden import batch_hidden_reference, batch_norm_reference
    from glocal.kernels.batch_hidden_triton import batch_hidden_tokens, batch_tokens

    lattice, eps = Lattice(side, side, prefix=1), [1e-5, 1e-5]
    sizes = (lattice.height, lattice.width, lattice.prefix)
    norms = [1 + make(dim) / 4, make(dim), 1 + make(dim) / 4, make(dim)]
    squeeze = [make(8, dim) / dim**0.5, make(8), make(dim, 8), make(dim)]

    def fast(x: Tensor, taps: Tensor, *rest: Tensor) -> Tensor:
        return batch_hidden_tokens(x, list(rest[:2]), taps, list(rest[2:4]), eps, list(rest[4:]), *sizes, 1)[0]

    def plain(x: Tensor, taps: Tensor, *rest: Tensor) -> Tensor:
        return batch_hidden_reference(x, rest[:2], taps, rest[2:4], eps, rest[4:], nn.Hardswish(), lattice)

    tokens, taps = make(images, len(lattice), dim), make(dim, 1, 3, 3)
    yield "normalised hidden tokens", fast, plain, [tokens, taps, *norms, *squeeze]
    yield (
        "normalised tokens",
        lambda x, *norm: batch_tokens(x, list(norm), eps[0], lattice.prefix)[0],
        lambda x, *norm: batch_norm_reference(x, norm, eps[0], lattice),
        [tokens, *norms[:2]],
    )


def _deform(make: Callable[..., Tensor], images: int, dim: int, side: int) -> Iterator[Case]:
    from glocal.kernels.deform import sample_taps_reference
    from glocal.kernels.deform_triton import gather_taps

    patches, offset = make(images, side, side, dim), make(images, 8, side // 2, side // 2)

    def plain(x: Tensor, offset: Tensor) -> Tensor:
        taps = sample_taps_reference(x.permute(0, 3, 1, 2), offset, kernel=2, stride=2, padding=0)
        return taps.permute(0, 3, 4, 2, 1)  # (B, H', W', taps, C)

    yield "moved taps", lambda x, o: gather_taps(x, o, 2, 2, 0), plain, [patches, offset]


def _compare(
    fast: Callable[..., Tensor], slow: Callable[..., Tensor], leaves: list[Tensor], *, slopes: bool
) -> Iterator[float]:
    mine, true = (
        [each.detach().to(to).requires_grad_(slopes) for each in leaves] for to in (leaves[0].dtype, torch.float32)
    )
    out, reference = fast(*mine), slow(*true)
    yield _distance(out, reference)
    if not slopes:
        return
    slope = torch.randn(reference.shape, generator=torch.Generator().manual_seed(1), device="cpu").to(reference)
    found = torch.autograd.grad(out, mine, slope.to(out.dtype))
    wanted = torch.autograd.grad(reference, true, slope)
    for here, there in zip(found, wanted, strict=True):
        yield _distance(here, there)


def _distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.detach().float() - wanted.detach()).norm() / wanted.detach().norm())
