"""When the fused kernels run: on a GPU that Triton can program, outside of export, unless switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from threading import Lock

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn.modules import module

from glocal.kernels.trial import Family, trusted

_switch = {"off": int(os.environ.get("GLOCAL_KERNELS", "1") == "0")}  # how many want plain PyTorch
_lock = Lock()

_HAS_TRITON = find_spec("triton") is not None
HALF = (torch.bfloat16, torch.float16)
GRID = 65_535  # programs along a launch's second and third axis
MUCH = 2**22  # elements that keep a large GPU busy for longer than a launch takes


def fused(tokens: Tensor, family: Family = "deform") -> bool:
    """Tell whether the fused kernels take these tokens; if not, plain PyTorch does the work."""
    if not tokens.is_cuda or _switch["off"] or not _HAS_TRITON or tokens.dtype not in (torch.float32, *HALF):
        return False
    return not _exporting() and trusted(family, working_type(tokens), tokens.device.type, tokens.device.index)


def pays(tokens: Tensor, family: Family = "tokens") -> bool:
    """Tell whether kernels that save memory traffic pay: half precision, and compiled or with many tokens.

    Launched one by one from Python, a kernel costs more than the few operations it replaces, unless there is work.
    """
    if not tokens.is_cuda or working_type(tokens) not in HALF or transformed():
        return False
    return (torch.compiler.is_dynamo_compiling() or tokens.numel() >= MUCH) and fused(tokens, family)


def recorded(*tensors: Tensor) -> bool:
    """Tell whether autograd, a transform such as vmap or a tracer watches: the registered operator must be called.

    Otherwise its launches can be made directly, which spares the dispatcher's time at small batches.
    """
    if torch.compiler.is_compiling():  # asked first: nothing below can be traced
        return True
    return (torch.is_grad_enabled() and any(each.requires_grad for each in tensors)) or transformed()


def transformed() -> bool:
    """Tell whether torch.func or forward-mode differentiation is at work, which see through PyTorch's own operators."""
    if torch.compiler.is_compiling():
        return False
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def there(tokens: Tensor) -> AbstractContextManager[object]:
    """Launch on the tokens' own device, which need not be the current one; compiled code sees to it itself."""
    if torch.compiler.is_compiling() or not tokens.is_cuda:
        return nullcontext()
    return torch.cuda.device(tokens.device)


# Traced as a constant: while compiling, torch before 2.13 answers yes to is_exporting().
@torch.compiler.assume_constant_result
def _exporting() -> bool:
    return torch.compiler._is_exporting_flag


@contextmanager
def plain() -> Iterator[None]:
    """Keep to plain PyTorch inside a `with`; GLOCAL_KERNELS=0 does it for a whole process."""
    with _lock:
        _switch["off"] += 1
    try:
        yield
    finally:
        with _lock:
            _switch["off"] -= 1


def working_type(tokens: Tensor) -> torch.dtype:
    """Give the type a convolution would work in: the tokens' own, or autocast's."""
    kind = tokens.device.type
    if kind == "meta":  # which autocast does not know
        return tokens.dtype
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype


def overwrites(tokens: Tensor) -> bool:
    """Tell whether intermediate results had better be overwritten: at inference on a processor.

    Fresh memory costs a processor as much as the work it is for; a GPU has its own store. Whether a hook may want
    those results afterwards, `bare` tells.
    """
    return tokens.device.type == "cpu" and not torch.is_grad_enabled() and not recorded()


def bare(*modules: nn.Module) -> bool:
    """Tell whether nobody listens to these modules, so that their weights may be used without calling them."""
    if (
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    ):
        return False
    for each in modules:
        if each._forward_hooks or each._forward_pre_hooks or each._backward_hooks or each._backward_pre_hooks:
            return False
    return True
