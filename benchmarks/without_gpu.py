"""Compile a model for a GPU that is not there, to read what inductor would run on it.

Traced with tensors that only claim to exist, moved to the GPU between tracing and compiling, and never launched. Triton
and inductor ask for a device at a dozen places; each is given the answers of an H200.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor, nn
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.device_interface import CudaInterface
from torch._dynamo.utils import detect_fake_mode
from torch._functorch.aot_autograd import aot_module
from torch._guards import TracingContext, tracing
from torch._inductor import async_compile, config, fx_passes, graph
from torch._inductor.compile_fx import compile_fx_inner, partition_fn
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from triton.backends.compiler import GPUTarget

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    warp_size=32,
    total_memory=141 * 2**30,
    L2_cache_size=60 * 2**20,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
)


class Done(Exception):
    """Compiled; there is nothing to run it on."""


def training_code(model: nn.Module, images: Tensor, *, attention: str = "cudnn", **settings: object) -> list[str]:
    """Give inductor's code for a model's forward and backward pass under bf16 autocast; `settings` are inductor's."""
    codes: list[str] = []
    with _pretence(codes, attention), config.patch(max_autotune=False, **settings):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            _only_claimed(model)
            kept: dict[str, Any] = {}

            def parted(*args: Any, **words: Any) -> Any:
                forward, kept["backward"] = partition_fn(*args, **words)
                return forward, kept["backward"]

            strides: dict[str, tuple[int, ...]] = {}
            net = aot_module(
                model,
                fw_compiler=_compiler(strides, back=False),
                bw_compiler=_compiler(strides, back=True),
                partition_fn=parted,
                decompositions=select_decomp_table(),
            )
            with torch.autocast("cpu", torch.bfloat16), _as_on_a_gpu(), suppress(Done):
                net(torch.empty(images.shape))
        backward = kept["backward"]
        examples = [node.meta["val"] for node in backward.graph.nodes if node.op == "placeholder"]
        if len(codes) == 1:
            with torch.no_grad():
                _compiler(strides, back=True)(backward, examples)
    return codes


def kernels(code: str) -> Iterator[str]:
    """Name the kernels and operators that inductor's code calls, in order."""
    for line in code.splitlines():
        found = re.search(r"(\w+)\.run\(|= ?(?:torch\.ops\.)?([\w.]+)\.default\(|extern_kernels\.(\w+)\(", line)
        if found:
            yield next(each for each in found.groups() if each)


def _compiler(strides: dict[str, tuple[int, ...]], *, back: bool) -> Callable[[Any, Any], Any]:
    def compile_(module: Any, examples: list[Any]) -> Any:
        mode = detect_fake_mode(examples)
        assert mode is not None
        for node in module.graph.nodes:
            node.args, node.kwargs = tree_map(_there, (node.args, node.kwargs))
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        with mode, torch.autocast("cpu", enabled=False):
            given = [_laid(each) for each in examples]
            FakeTensorProp(module, mode).propagate_dont_convert_inputs(*given)
            if back:  # what the forward pass keeps lies as inductor laid it there
                given = [_laid(each, strides.get(node.name)) for node, each in zip(places, given, strict=True)]
        module.recompile()
        context = TracingContext(mode)
        with tracing(context), context.report_output_strides() as found, torch.autocast("cpu", enabled=False):
            compile_fx_inner(module, given, cudagraphs=False, graph_id=0, is_backward=back)
        if not back:
            for node, stride in zip(list(module.graph.nodes)[-1].args[0], found or (), strict=False):
                if stride is not None and hasattr(node, "name"):
                    strides[node.name] = tuple(map(int, stride))
        return _nothing

    return compile_


def _nothing(*_: object) -> None:
    raise Done


def _there(value: Any) -> Any:
    return torch.device("cuda", 0) if isinstance(value, torch.device) and value.type == "cpu" else value


def _laid(value: Any, stride: tuple[int, ...] | None = None) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, stride or value.stride(), dtype=value.dtype, device="cuda")


def _only_claimed(model: nn.Module) -> None:
    for module in model.modules():
        for name, each in list(module._parameters.items()):
            if each is not None:
                module._parameters[name] = nn.Parameter(torch.empty(each.shape, dtype=each.dtype))
        for name, each in list(module._buffers.items()):
            if each is not None:
                module._buffers[name] = torch.empty(each.shape, dtype=each.dtype)


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Let LayerNorm work in float32 under autocast, as it does on a GPU and not on a processor."""
    norm = F.layer_norm
    with patch.object(F, "layer_norm", lambda x, *args, **words: norm(x.float(), *args, **words)):
        yield


@contextmanager
def _pretence(codes: list[str], attention: str) -> Iterator[None]:
    write = graph.GraphLowering.codegen

    def written(self: Any, *args: Any, **words: Any) -> Any:
        out = write(self, *args, **words)
        codes.append(getattr(out[0], "value", out[0]))
        return out

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any = None, dropout_p: float = 0.0, **words: Any) -> Tensor:
        if attention == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, scale=words.get("scale"))[0]
        operator = torch.ops.aten._scaled_dot_product_cudnn_attention
        return operator(q, k, v, mask, True, dropout_p, scale=words.get("scale"))[0]

    class Driver:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

    def zero(*_: object, **__: object) -> int:
        return 0

    def yes(*_: object, **__: object) -> bool:
        return True

    def h200(*_: object) -> Any:
        return H200

    said: list[tuple[Any, str, Any]] = [
        (F, "scaled_dot_product_attention", attend),
        (graph.GraphLowering, "codegen", written),
        (async_compile.AsyncCompile, "triton", lambda *_, **__: _nothing),
        (async_compile.AsyncCompile, "wait", lambda *_: None),
        (fx_passes.reinplace, "_inplace_generalized_scatter", lambda into, *_: into),  # would look for a device
        (dynamo_utils, "assert_no_fake_params_or_buffers", lambda _: None),
        (fake_tensor, "init_gpu_context", zero),
        (torch.cuda, "is_available", yes),
        (torch.cuda, "_lazy_init", zero),
        (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
        (torch.cuda, "set_rng_state", zero),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_device_properties", h200),
        (CudaInterface, "is_available", staticmethod(yes)),
        (CudaInterface, "device_count", staticmethod(lambda: 1)),
        (CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90)),
        (CudaInterface, "get_device_properties", staticmethod(h200)),
        (CudaInterface, "is_bf16_supported", staticmethod(yes)),
        (CudaInterface.Worker, "get_device_properties", staticmethod(h200)),
    ]
    said += [(torch.cuda, name, zero) for name in ("current_device", "_exchange_device", "_maybe_exchange_device")]
    said += [(owner, "current_device", staticmethod(zero)) for owner in (CudaInterface, CudaInterface.Worker)]
    before = triton.runtime.driver._active
    with ExitStack() as stack:
        for owner, name, value in said:
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(patch.object(torch._C, "_cuda_getCurrentRawStream", zero, create=True))
        triton.runtime.driver.set_active(Driver())
        stack.callback(setattr, triton.runtime.driver, "_active", before)
        stack.enter_context(patch.dict("os.environ", TORCHINDUCTOR_FORCE_DISABLE_CACHES="1"))
        yield
