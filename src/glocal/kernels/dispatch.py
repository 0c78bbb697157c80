"""When the fused kernels run: on a GPU that Triton can program, outside of export, unless switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor

_switch = {"on": os.environ.get("GLOCAL_KERNELS", "1") != "0"}

_HAS_TRITON = find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)


def fused(tokens: Tensor) -> bool:
    """Tell whether the fused kernels take these tokens; if not, plain PyTorch does the work."""
    return (
        tokens.is_cuda and _switch["on"] and tokens.dtype in (torch.float32, *HALF) and not _exporting() and _HAS_TRITON
    )


def compiled_training(tokens: Tensor) -> bool:
    """Tell whether a training step is being compiled, where a plain convolution on tokens cannot be trusted.

    Compiled by torch 2.11 with bf16, the gradients of a depth-wise convolution on a view of the tokens drift from
    the eager ones within tens of steps (benchmarks/NOTES.md); the kernel does not take that way.
    """
    traced = torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled()
    return traced and fused(tokens) and working_type(tokens) in HALF


def recorded(*tensors: Tensor) -> bool:
    """Tell whether autograd or a tracer watches, so that the registered operator must be called.

    Otherwise its launches can be made directly, which spares the dispatcher's time at small batches.
    """
    watched = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    return watched or torch.compiler.is_compiling()


def _exporting() -> bool:
    # While compiling, torch before 2.13 answers yes to is_exporting().
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


@contextmanager
def plain() -> Iterator[None]:
    """Keep to plain PyTorch inside a `with`; GLOCAL_KERNELS=0 does it for a whole process."""
    before, _switch["on"] = _switch["on"], False
    try:
        yield
    finally:
        _switch["on"] = before


def working_type(tokens: Tensor) -> torch.dtype:
    """Give the type a convolution would work in: the tokens' own, or autocast's."""
    kind = tokens.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype
