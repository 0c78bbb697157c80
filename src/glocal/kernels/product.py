"""Tokens times a matrix, by whichever of PyTorch's two libraries does it faster on this processor."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from glocal.kernels.dispatch import overwrites

WORTH = 3_000_000  # multiply-adds; below, the call itself takes longer than the faster arithmetic saves


def product(tokens: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply (..., C) tokens by an (out, C) matrix, as `F.linear` does, to its last digit but one."""
    if not (worth(tokens, matrix.shape[0]) and _by_onednn(tokens, matrix)):
        return F.linear(tokens, matrix, bias)
    return torch.ops.mkldnn._linear_pointwise(tokens, matrix, bias, "none", [], "")


def worth(tokens: Tensor, width: int) -> bool:
    """Tell whether there is enough to do for `product` to choose; asked once, where many products are short."""
    return tokens.numel() * width >= WORTH


def _by_onednn(tokens: Tensor, matrix: Tensor) -> bool:
    """Tell whether oneDNN may multiply: in float32, at inference, and nobody follows what is called."""
    if torch.compiler.is_compiling() or not overwrites(tokens) or torch.jit.is_tracing():
        return False
    if _get_current_dispatch_mode() is not None:  # a counter of operations would not know this one
        return False
    plain = tokens.dtype is matrix.dtype is torch.float32 and not torch.is_autocast_enabled("cpu")
    return plain and torch.backends.mkldnn.enabled and _onednn_is_faster()


@cache
def _onednn_is_faster() -> bool:
    """Tell whether it is on this processor, and whether PyTorch lends it to us: its operator is not a public one.

    PyTorch multiplies with MKL, which keeps to 256 bits on AMD's processors; oneDNN, which convolves, takes 512.
    """
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and _made_by_amd()
    if not (wide and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    operator: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    words: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the caller's defaults are
    rows, matrix, bias = torch.ones(3, 4, **words), torch.eye(2, 4, **words), torch.arange(2, **words)
    try:
        found = operator(rows, matrix, bias, "none", [], "")
    except Exception:  # not there, or called otherwise in this version
        return False
    return torch.equal(found, F.linear(rows, matrix, bias))


def _made_by_amd() -> bool:
    described = Path("/proc/cpuinfo")
    try:
        text = described.read_text() if described.exists() else platform.processor()
    except OSError:
        return False
    return "AuthenticAMD" in text
