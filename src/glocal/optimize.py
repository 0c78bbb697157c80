"""Compiled models: for inference, folded and with the kernels that pay; for training, with gradients to be trusted."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from glocal.enhance import fold

TRAINING = {"layout_optimization": False}  # inductor's settings: attention's output stays as it was laid out


def optimize(model: nn.Module, *, graphs: bool = False, dynamic: bool | None = None) -> nn.Module:
    """Give a compiled inference copy of a model.

    BatchNorm is merged into its convolutions, and the kernels that pay at inference are taken. `graphs` replays CUDA
    graphs, which pays at small batches; each result is then overwritten by the next call.
    """
    mode = "reduce-overhead" if graphs else None
    return cast("nn.Module", torch.compile(fold(model), mode=mode, dynamic=dynamic))


def compile_training(model: nn.Module, *, graphs: bool = False, dynamic: bool | None = None) -> nn.Module:
    """Compile a model for training so that its half-precision gradients stay those of eager training.

    torch keeps cuDNN's graphs of attention's backward pass by the layouts of queries, keys and values alone, while
    they hold for one layout of the output and of the incoming gradient too. Compiled, blocks of one model can differ
    in those when a convolution on tokens follows: the graph of one block then misreads the other's (seen with torch
    2.11 on an H200; benchmarks/NOTES.md). So attention is traced without cuDNN, and layouts are left as they are.

    `graphs` replays forward and backward pass as CUDA graphs: faster where launching takes longer than working. Batches
    must keep their size then, and gradients be used up (`zero_grad()`) before the next pass.
    """
    # Functions of this module: a compiled model can be pickled then, and models share what was compiled.
    return cast("nn.Module", torch.compile(model, dynamic=dynamic, backend=_replayed if graphs else _launched))


def _launched(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return _training(graph, inputs, graphs=False)


def _replayed(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    return _training(graph, inputs, graphs=True)


def _training(graph: torch.fx.GraphModule, inputs: list[Any], *, graphs: bool) -> Any:
    """Let inductor compile a graph; forward and backward pass are traced in here, and attention's kind chosen."""
    from torch._inductor.compile_fx import compile_fx

    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return compile_fx(graph, inputs, config_patches={**TRAINING, "triton.cudagraphs": graphs})
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
