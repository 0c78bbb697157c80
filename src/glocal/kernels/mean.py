"""The mean token: a kernel on a GPU, else plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from glocal.kernels.dispatch import HALF, pays, there


def mean_token(tokens: Tensor) -> Tensor:
    """Average (B, N, C) over its tokens: (B, 1, C)."""
    if tokens.ndim != 3 or tokens.dtype not in HALF or tokens.stride(-1) != 1 or not pays(tokens):
        return tokens.mean(dim=1, keepdim=True)
    from glocal.kernels.mean_triton import mean_tokens

    with there(tokens):
        return mean_tokens(tokens).unsqueeze(1)
