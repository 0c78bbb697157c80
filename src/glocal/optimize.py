"""Compiled models: for inference, folded and with the kernels that pay; for training, with gradients to be trusted."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from glocal.enhance import fold


def optimize(model: nn.Module, *, graphs: bool = False, dynamic: bool | None = None) -> nn.Module:
    """Give a compiled inference copy of a model.

    BatchNorm is merged into its convolutions, and the kernels that pay at inference are taken. `graphs` replays CUDA
    graphs, which pays at small batches; each result is then overwritten by the next call.
    """
    mode = "reduce-overhead" if graphs else None
    return cast("nn.Module", torch.compile(fold(model), mode=mode, dynamic=dynamic))


def compile_training(model: nn.Module, *, dynamic: bool | None = None) -> nn.Module:
    """Compile a model for training so that its half-precision gradients stay those of eager training.

    torch keeps cuDNN's graphs of attention's backward pass by the layouts of queries, keys and values alone, while
    they hold for one layout of the output and of the incoming gradient too. Compiled, blocks of one model can differ
    in those when a convolution on tokens follows: the graph of one block then misreads the other's (seen with torch
    2.11 on an H200; benchmarks/NOTES.md). So attention is traced without cuDNN, and layouts are left as they are.
    """
    options: dict[str, Any] = {"layout_optimization": False}
    run = cast("nn.Module", torch.compile(model, dynamic=dynamic, options=options))
    aside = _Aside()
    # Hooks of the compiled module run outside of what is compiled.
    run.register_forward_pre_hook(aside.enter)
    run.register_forward_hook(aside.leave, always_call=True)
    return run


class _Aside:
    """Keeps cuDNN's attention from being chosen while a module runs; bound methods, so that copies have their own."""

    def __init__(self) -> None:
        self.before: list[bool] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.before.append(torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(False)

    def leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.before:
            torch.backends.cuda.enable_cudnn_sdp(self.before.pop())
