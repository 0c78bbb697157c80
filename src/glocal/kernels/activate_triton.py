"""The activations that kernels know, by number, and their slopes."""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(x, KIND: tl.constexpr):
    """Apply hard-swish (1), ReLU6 (2) or GELU (3); each leaves zero as it is."""
    if KIND == 1:
        x = x * tl.minimum(tl.maximum(x * (1.0 / 6.0) + 0.5, 0.0), 1.0)
    elif KIND == 2:
        x = tl.where(x != x, x, tl.minimum(tl.maximum(x, 0.0), 6.0))  # what is not a number stays so
    elif KIND == 3:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return x


@triton.jit
def slope(x, KIND: tl.constexpr):
    """Give the activation's derivative; at a corner, what PyTorch gives there."""
    if KIND == 1:
        x = tl.where(x < -3.0, 0.0, tl.where(x <= 3.0, x * (1.0 / 3.0) + 0.5, 1.0))
    elif KIND == 2:
        x = tl.where((x > 0.0) & (x < 6.0), 1.0, 0.0)
    elif KIND == 3:
        x = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    else:
        x = x * 0.0 + 1.0
    return x
