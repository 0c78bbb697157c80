"""LocalFFN's hidden map at inference, with its plain reference."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glocal.kernels.dispatch import recorded, working_type

ACTIVATIONS: dict[type[nn.Module], int] = {nn.Identity: 0, nn.Hardswish: 1, nn.ReLU6: 2, nn.GELU: 3}


def hidden(
    x: Tensor, weight: Tensor, bias: Tensor, act: nn.Module, height: int, width: int, *, pool: bool
) -> tuple[Tensor, Tensor]:
    """Give act(dw(act(x)) + bias) of (B, H * W, C) tokens and, when `pool`, its mean over each image (B, C)."""
    from glocal.kernels.hidden_triton import hidden_tokens, run_hidden

    code = ACTIVATIONS[type(act)]
    x = x.to(working_type(x))
    x = x if x.stride(-1) == 1 else x.contiguous()
    before = code
    if isinstance(act, nn.GELU):  # too dear to do again for each tap
        x, before = act(x), 0
    operator = hidden_tokens if recorded(x, weight, bias) else run_hidden
    out, mean = operator(x, weight, bias, height, width, before, code, pool)
    return out, mean


def hidden_reference(
    x: Tensor, weight: Tensor, bias: Tensor, act: nn.Module, height: int, width: int, *, pool: bool
) -> tuple[Tensor, Tensor]:
    """Compute the same in plain PyTorch."""
    patch_map = act(x).unflatten(1, (height, width)).permute(0, 3, 1, 2)
    local = act(F.conv2d(patch_map, weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0]))
    out = local.permute(0, 2, 3, 1).flatten(1, 2)
    return out, out.mean(dim=1) if pool else out.new_empty(len(out), 0)
