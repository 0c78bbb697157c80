"""Check and time the kernels by themselves on a GPU, beside what they replace.

python benchmarks/probe.py check time sweep

Times are those of CUDA graphs of twenty calls: what the GPU needs, not what it takes to launch from Python.
"""

# ruff: noqa: B023, D103  the closures run at once
from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from triton.testing import do_bench

from glocal.kernels import (
    convolve_triton,
    depthwise_triton,
    dispatch,
    hidden_triton,
    mean_triton,
    multi_scale_triton,
    project_triton,
)
from glocal.kernels.deform import deform_conv2d, deform_conv2d_reference
from glocal.kernels.depthwise import depthwise_reference
from glocal.lattice import Lattice

Leaves = list[Tensor]


def main() -> None:
    """Print errors against float64, then times."""
    torch.manual_seed(0)
    ceilings()
    if "check" in sys.argv:
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            correct(kind)
    if "time" in sys.argv:
        times(256, "sweep" in sys.argv)


def ceilings() -> None:
    """Measure copy bandwidth and bf16 matrix rate."""
    a = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    b, w = torch.empty_like(a), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copy, product = median(lambda: b.copy_(a)), median(lambda: w @ w)
    print(
        f"ceilings: copy {2 * a.nbytes / copy / 1e9:.2f} TB/s, bf16 product {2 * 8192**3 / product / 1e9:.0f} TFLOP/s"
    )


def median(f: Callable[[], object]) -> float:
    return do_bench(f, warmup=50, rep=200, return_mode="median")  # ms


def error(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def both(fast: Callable[..., Tensor], slow: Callable[..., Tensor], leaves: Leaves) -> list[float]:
    """Run forward and backward both ways, the slow one in float64; give the relative errors."""
    mine = [each.detach().clone().requires_grad_() for each in leaves]
    true = [each.detach().double().requires_grad_() for each in leaves]
    out, reference = fast(*mine), slow(*true)
    grad = torch.randn_like(out)
    out.backward(grad)
    reference.backward(grad.double())
    return [error(out, reference), *(error(a.grad, b.grad) for a, b in zip(mine, true, strict=True))]


def correct(kind: torch.dtype) -> None:
    """Compare every kernel with its reference in float64."""
    for height, width, prefix, images in ((14, 14, 1, 9), (7, 7, 0, 33), (5, 12, 5, 4), (14, 14, 1, 200)):
        lattice, widths = Lattice(height, width, prefix), (64, 64, 64)
        make = lambda *shape: torch.randn(shape, device="cuda").to(kind)  # noqa: E731
        x = make(images, len(lattice), 192)
        taps, mixes = [make(192, 1, 3, 3), make(192, 1, 5, 5)], [make(192, 192) / 14 for _ in range(3)]
        bias = make(192)
        life = both(
            lambda x, a, b, m0, m1, m2, c: multi_scale(x, [None, a, b], [m0, m1, m2], c, lattice),
            lambda x, a, b, m0, m1, m2, c: plain_life(x, [None, a, b], [m0, m1, m2], c, lattice),
            [x, *taps, *mixes, bias],
        )
        y = make(images, len(lattice), 576)
        groups = both(
            lambda x, a, b: depthwise_groups(x, (None, a, b), widths, 3, lattice),
            lambda x, a, b: depthwise_reference(x, (None, a, b), widths, 3, lattice),
            [y, *taps],
        )
        print(
            kind,
            (height, width, prefix, images),
            "life",
            *(f"{e:.1e}" for e in life),
            "| groups",
            *(f"{e:.1e}" for e in groups),
        )
    for shape in ((6, 96, 28, 28, 192), (3, 33, 7, 10, 50)):
        images, dim, height, width, out_dim = shape
        x = torch.randn(images, height, width, dim, device="cuda").to(kind).permute(0, 3, 1, 2)
        offset = torch.randn(images, 8, height // 2, width // 2, device="cuda").to(kind)
        weight = (torch.randn(out_dim, dim, 2, 2, device="cuda") / (4 * dim) ** 0.5).to(kind)
        shift = torch.randn(out_dim, device="cuda").to(kind)
        merge = both(
            lambda x, o, w, b: deform_conv2d(x, o, w, b, 2, 0),
            lambda x, o, w, b: deform_conv2d_reference(x, o, w, b, 2, 0),
            [x, offset, weight, shift],
        )
        print(kind, shape, "deform", *(f"{e:.1e}" for e in merge))


def multi_scale(x: Tensor, taps: list[Tensor | None], mixes: Leaves, bias: Tensor, lattice: Lattice) -> Tensor:
    given = [x.new_empty(0) if tap is None else tap for tap in taps]
    sizes = (lattice.height, lattice.width, lattice.prefix)
    return multi_scale_triton.multi_scale_tokens(x, given, mixes, bias, *sizes, torch.is_grad_enabled())[0]


def depthwise_groups(
    x: Tensor, weights: tuple[Tensor | None, ...], widths: tuple[int, ...], parts: int, lattice: Lattice
) -> Tensor:
    given = [x.new_empty(0) if weight is None else weight for weight in weights]
    sizes = (lattice.height, lattice.width, lattice.prefix)
    return depthwise_triton.depthwise_tokens(x, given, list(widths), parts, *sizes)


def plain_life(x: Tensor, taps: list[Tensor | None], mixes: Leaves, bias: Tensor, lattice: Lattice) -> Tensor:
    scales: Leaves = []
    for i, (tap, mix) in enumerate(zip(taps, mixes, strict=True)):
        x = x if tap is None else depthwise_reference(x, (tap,), (x.shape[-1],), 1, lattice)
        x = F.linear(x, mix, bias if i == 0 else None)
        scales.append(x.unflatten(-1, (3, -1)))
    return torch.cat(scales, -1).flatten(2)


def times(images: int, sweep: bool) -> None:
    """Time forward, and forward with backward, in bf16."""
    kind, lattice = torch.bfloat16, Lattice(14, 14, 1)
    make = lambda *shape: torch.randn(shape, device="cuda").to(kind).requires_grad_()  # noqa: E731
    x, bias = make(images, 197, 192), make(192)
    taps, mixes = [None, make(192, 1, 3, 3), make(192, 1, 5, 5)], [make(192, 192) for _ in range(3)]
    qkv = make(576, 192)
    report("linear 192->576", lambda: F.linear(x, qkv), [x, qkv])
    report("linear 192->192", lambda: F.linear(x, mixes[0]), [x, mixes[0]])
    leaves = [x, bias, *(t for t in taps if t is not None), *mixes]
    report("LIFE kernels", lambda: multi_scale(x, taps, mixes, bias, lattice), leaves)
    report("LIFE plain", lambda: plain_life(x, taps, mixes, bias, lattice), leaves)
    out = torch.empty(images * 197, 576, device="cuda", dtype=kind)
    rows = x.detach().flatten(0, 1)
    for tile, warps, stages in ((128, 8, 3), (128, 4, 3), (64, 4, 3), (128, 8, 2)) if sweep else ():
        project_triton.TILE, project_triton.WARPS, project_triton.STAGES = tile, warps, stages
        report(
            f"project {tile} {warps} {stages}", lambda: project_triton.project(rows, mixes[1], None, out, 192, 64), []
        )
    project_triton.TILE, project_triton.WARPS, project_triton.STAGES = 128, 8, 3
    h, w3, w5 = make(images, 197, 768), make(768, 1, 3, 3), make(192, 1, 5, 5)
    shift = make(768)
    report("dw3 768 kernel", lambda: depthwise_groups(h, (w3,), (768,), 1, lattice), [h, w3])
    report("dw3 768 plain", lambda: depthwise_reference(h, (w3,), (768,), 1, lattice), [h, w3])
    report("dw3 768 gelu", lambda: F.gelu(h), [h])
    report("hidden", lambda: hidden_triton.hidden_tokens(h, w3, shift, 14, 14, 1, 1, 1, True)[0], [])
    for strip in (7, 14) if sweep else ():
        convolve_triton.STRIP = strip
        report(f"dw5 192 strip {strip}", lambda: depthwise_groups(x, (w5,), (192,), 1, lattice), [x, w5])
    convolve_triton.STRIP = 16
    report("dw5 192 plain", lambda: depthwise_reference(x, (w5,), (192,), 1, lattice), [x, w5])
    report("dw3 192 kernel", lambda: depthwise_groups(x, (taps[1],), (192,), 1, lattice), [x, taps[1]])
    report("mean kernel", lambda: mean_triton.mean_tokens(x), [])
    report("mean plain", lambda: x.mean(1), [])
    for dim, side in ((96, 56), (192, 28), (384, 14)):
        m = torch.randn(images // 2, side, side, dim, device="cuda", dtype=kind).permute(0, 3, 1, 2).requires_grad_()
        o = (torch.randn(images // 2, 8, side // 2, side // 2, device="cuda", dtype=kind) * 0.3).requires_grad_()
        w, s = make(2 * dim, dim, 2, 2), make(2 * dim)
        report(f"DTM {dim} kernels bf16", lambda: deform_conv2d(m, o, w, s, 2, 0), [m, o, w, s])
        for name, to in (("fp16", torch.float16), ("fp32", torch.float32)):
            args = [each.detach().to(to).requires_grad_() for each in (m, o, w, s)]
            with dispatch.plain():
                report(f"DTM {dim} torchvision {name}", lambda: deform_conv2d(*args, 2, 0), args)
            report(f"DTM {dim} kernels {name}", lambda: deform_conv2d(*args, 2, 0), args)


def report(name: str, f: Callable[[], Tensor | None], leaves: Leaves) -> None:
    with torch.no_grad():
        line = f"{name:28} forward {graphed(f):8.1f} us"
    if leaves:
        out = f()
        assert out is not None
        grad = torch.randn_like(out)
        line += f"  backward {graphed(lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)):8.1f} us"
    print(line, flush=True)


def graphed(f: Callable[[], object], calls: int = 20) -> float:
    """Give the microseconds of one call, replayed in a graph of many; 0 where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                f()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                for _ in range(calls):
                    f()
        return median(graph.replay) / calls * 1e3
    except RuntimeError as problem:
        print(str(problem).splitlines()[0][:100])
        return 0.0


if __name__ == "__main__":
    main()
