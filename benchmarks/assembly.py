"""Compile the kernels for a GPU that need not be there, and read the machine code: registers, spills, instructions.

python benchmarks/assembly.py            # every kernel of DeiT-T (224 pixels, batch 256), for compute capability 9.0
python benchmarks/assembly.py --arch 80

It needs no GPU: Triton brings the assembler. Besides numbers it shows that a Triton version compiles them at all.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from glocal.kernels import (
    batch_hidden_triton,
    convolve_triton,
    deform_triton,
    depthwise_triton,
    hidden_triton,
    mean_triton,
    multi_scale_triton,
    project_triton,
    rows_triton,
    taps_triton,
)

MODULES = (
    convolve_triton,
    deform_triton,
    mean_triton,
    project_triton,
    rows_triton,
    taps_triton,
)
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64"}


class Recorder:
    """Stands where a launch would be: compiles the kernel with the launch's own arguments and runs nothing."""

    def __init__(self, kernel: Any, arch: int, found: list[dict[str, Any]]) -> None:
        self.kernel, self.arch, self.found = kernel, arch, found

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **named: self._compile(grid, args, named)

    def _compile(self, grid: tuple[int, ...], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        given = dict(zip(self.kernel.arg_names, args, strict=False)) | named
        constants = {name: given[name] for name in self.kernel.arg_names if isinstance_constexpr(self.kernel, name)}
        constants |= {
            name: 1 for name, value in given.items() if name not in constants and isinstance(value, int) and value == 1
        }
        signature = {n: "constexpr" if n in constants else kind(given[n]) for n in self.kernel.arg_names}
        attributes = {
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(self.kernel.arg_names)
            if name not in constants and (isinstance(given[name], Tensor) or given[name] % 16 == 0)
        }
        source = ASTSource(self.kernel, signature, constexprs=constants, attrs=attributes)
        built = triton.compile(source, target=GPUTarget("cuda", self.arch, 32), options=options)
        told = inspect(built.asm["cubin"])
        self.found.append({"kernel": self.kernel.fn.__name__, "programs": product(grid), **options, **told})


def isinstance_constexpr(kernel: Any, name: str) -> bool:
    """Tell whether a parameter is a constant of the kernel."""
    return kernel.params[kernel.arg_names.index(name)].is_constexpr


def kind(value: Any) -> str:
    """Give Triton's name for an argument's type."""
    return f"*{NAMES[value.dtype]}" if isinstance(value, Tensor) else "i64" if value >= 2**31 else "i32"


def product(grid: tuple[int, ...]) -> int:
    """Count the programs of a grid."""
    total = 1
    for side in grid:
        total *= side
    return total


def inspect(cubin: bytes) -> dict[str, Any]:
    """Read registers, spilled bytes and instruction counts out of machine code."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        used = _run(tools / "cuobjdump", "--dump-resource-usage", file.name)
        code = _run(tools / "nvdisasm", "-c", file.name)
    registers, stack = (int(re.search(rf"{name}:(\d+)", used)[1]) for name in ("REG", "STACK"))  # pyright: ignore
    names = Counter(match[1] for match in re.finditer(r"^\s*/\*\w+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", code, re.M))
    sums = {"all": sum(names.values())} | {
        n: names[n] for n in ("FFMA", "LDG", "STG", "HMMA", "HGMMA", "LDL", "STL", "LDGSTS")
    }
    return {"registers": registers, "stack": stack, **sums}


def _run(*command: Any) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def calls(images: int, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Give every operator of DeiT-T, forward and backward, on memory that is never read."""
    make = lambda *shape: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    x, grad, sizes = make(images, 197, 192), make(images, 197, 576), (14, 14, 1)
    taps = [make(0), make(192, 1, 3, 3), make(192, 1, 5, 5)]
    mixes, hidden = [make(192, 192) for _ in range(3)], make(images, 197, 768)
    yield "LIFE", lambda: multi_scale_triton.run_multi_scale(x, taps, mixes, make(192), *sizes, True)
    one = make(1, 197, 192)
    yield "LIFE, one image", lambda: multi_scale_triton.run_multi_scale(one, taps, mixes, make(192), *sizes, False)
    kept = [make(0), x, x]
    backward = multi_scale_triton.multi_scale_backward
    yield "LIFE, backward", lambda: _body(backward)(grad, x, grad, kept, taps, mixes, *sizes)
    three = [make(768, 1, 3, 3)]
    yield "LocalFFN", lambda: depthwise_triton.run_depthwise(hidden, three, [768], 1, *sizes)
    backward = depthwise_triton.depthwise_backward
    yield "LocalFFN, backward", lambda: _body(backward)(hidden, hidden, three, [768], 1, *sizes)
    full = lambda *shape: torch.empty(shape, dtype=torch.float32, device="meta")  # noqa: E731
    norm, squeeze = [full(768), full(768)], [full(4, 768), full(4), full(768, 4), full(768)]
    rest = (norm, full(768, 1, 3, 3), norm, [1e-5, 1e-5], squeeze, *sizes, 1)
    yield "LocalFFN, normalised", lambda: batch_hidden_triton.run_batch_hidden(hidden, *rest)
    seen = [*norm, *norm, full(images, 768)]
    backward2 = batch_hidden_triton.batch_hidden_backward
    yield "LocalFFN, normalised, backward", lambda: _body(backward2)(hidden, hidden, hidden, seen, *rest)
    folded = hidden_triton.hidden_tokens
    yield "LocalFFN, folded", lambda: _body(folded)(hidden, three[0], make(768), *sizes, 1, 1, True)
    yield "CB", lambda: mean_triton.run_mean(x)
    patches, offset = make(images // 2, 28, 28, 192), make(images // 2, 8, 14, 14)
    yield "DTM", lambda: deform_triton.run_gather_taps(patches, offset, 2, 2, 0)
    moved = make(images // 2, 14, 14, 4, 192)
    yield "DTM", lambda: _body(deform_triton.gather_taps_backward)(moved, patches, offset, 2, 2, 0)


def _body(operator: Any) -> Callable[..., Any]:
    """Find the Python function behind an operator."""
    return operator._init_fn


def main() -> None:
    """Print a line for each launch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for module in MODULES:
        module.wrap_triton = lambda kernel: Recorder(kernel, options.arch, found)  # pyright: ignore
    print(f"triton {triton.__version__}, sm_{options.arch}, {options.dtype}, batch {options.batch}")
    for name, call in calls(options.batch, getattr(torch, options.dtype)):
        found.clear()
        call()
        for each in found:
            told = "  ".join(f"{key} {value}" for key, value in each.items() if value)
            print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main()
