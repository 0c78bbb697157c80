"""Check the kernels against float64 on a GPU, and time them by themselves beside what they replace.

python benchmarks/probe.py check
python benchmarks/probe.py time          # every kernel of DeiT-T, 224 pixels, batch 256, bf16
python benchmarks/probe.py sweep         # their knobs, to choose by; "sweep back taps" those alone

Times are the profiler's: what the GPU spends in each kernel, not what it takes to launch it from Python.
"""

# ruff: noqa: B023, D103  the closures run at once
from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from glocal.kernels import (
    convolve_triton,
    depthwise_triton,
    dispatch,
    hidden_triton,
    mean_triton,
    multi_scale_triton,
    project_triton,
    rows_triton,
    taps_triton,
)
from glocal.kernels.batch_hidden import batch_hidden_reference
from glocal.kernels.batch_hidden_triton import batch_hidden_tokens
from glocal.kernels.deform import deform_conv2d, deform_conv2d_reference
from glocal.kernels.depthwise import depthwise_reference
from glocal.lattice import Lattice

Leaves = list[Tensor]
DIM, HIDDEN = 192, 768


def main() -> None:
    """Print errors against float64, then times."""
    torch.manual_seed(0)
    if "check" in sys.argv:
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            correct(kind)
    if "time" in sys.argv:
        ceilings()
        times(256)
    if "sweep" in sys.argv:
        sweep(256, sys.argv[sys.argv.index("sweep") + 1 :])


def ceilings() -> None:
    """Measure copy bandwidth and bf16 matrix rate."""
    a = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    b, w = torch.empty_like(a), torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    copy, product = (sum(spent(f).values()) for f in (lambda: b.copy_(a), lambda: w @ w))
    print(
        f"ceilings: copy {2 * a.nbytes / copy / 1e6:.2f} TB/s, bf16 product {2 * 8192**3 / product / 1e6:.0f} TFLOP/s"
    )


def spent(f: Callable[[], object], rounds: int = 20) -> dict[str, float]:
    """Give the microseconds that each kernel takes in one call."""
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(rounds):
            f()
        torch.cuda.synchronize()
    return {row.key: row.self_device_time_total / rounds for row in seen.key_averages() if row.self_device_time_total}


def error(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def both(fast: Callable[..., Tensor], slow: Callable[..., Tensor], leaves: Leaves) -> str:
    """Run forward and backward both ways, the slow one in float64; give the relative errors."""
    mine = [each.detach().clone().requires_grad_() for each in leaves]
    true = [each.detach().double().requires_grad_() for each in leaves]
    out, reference = fast(*mine), slow(*true)
    grad = torch.randn_like(out)
    out.backward(grad)
    reference.backward(grad.double())
    found = [error(out, reference), *(error(a.grad, b.grad) for a, b in zip(mine, true, strict=True))]
    return " ".join(f"{each:.1e}" for each in found)


def correct(kind: torch.dtype) -> None:
    """Compare every kernel with its reference in float64."""
    for height, width, prefix, images in ((14, 14, 1, 9), (7, 7, 0, 33), (5, 12, 5, 4), (14, 14, 1, 200)):
        lattice, widths = Lattice(height, width, prefix), (64, 64, 64)
        make = lambda *shape: torch.randn(shape, device="cuda").to(kind)  # noqa: E731
        x = make(images, len(lattice), DIM)
        taps, mixes = [make(DIM, 1, 3, 3), make(DIM, 1, 5, 5)], [make(DIM, DIM) / 14 for _ in range(3)]
        leaves = [x, *taps, *mixes, make(DIM)]
        slow = lambda x, a, b, m0, m1, m2, c: plain_life(x, [None, a, b], [m0, m1, m2], c, lattice)  # noqa: E731
        life = both(lambda x, a, b, m0, m1, m2, c: multi_scale(x, [None, a, b], [m0, m1, m2], c, lattice), slow, leaves)
        with torch.no_grad():
            once = multi_scale(x, [None, *taps], mixes, leaves[-1], lattice)
            rest = [each.double() for each in leaves]
            life += f" without gradients {error(once, slow(*rest)):.1e}"
        y = make(images, len(lattice), 3 * DIM)
        groups = both(
            lambda x, a, b: depthwise_groups(x, (None, a, b), widths, 3, lattice),
            lambda x, a, b: depthwise_reference(x, (None, a, b), widths, 3, lattice),
            [y, *taps],
        )
        norms = [1 + make(DIM) / 4, make(DIM), 1 + make(DIM) / 4, make(DIM)]
        squeeze = [make(4, DIM) / DIM**0.5, make(4), make(DIM, 4), make(DIM)]
        eps, sizes = [1e-5, 1e-5], (height, width, prefix)
        batch = both(
            lambda x, t, *r: batch_hidden_tokens(x, list(r[:2]), t, list(r[2:4]), eps, list(r[4:]), *sizes, 1)[0],
            lambda x, t, *r: batch_hidden_reference(x, r[:2], t, r[2:4], eps, r[4:], nn.Hardswish(), lattice),
            [x, taps[0], *norms, *squeeze],
        )
        print(kind, (*sizes, images), f"life {life} | groups {groups} | normalised {batch}", flush=True)
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
        print(kind, shape, "deform", merge, flush=True)


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


def times(images: int) -> None:
    """Time forward, and forward with backward, in bf16."""
    kind, lattice = torch.bfloat16, Lattice(14, 14, 1)
    full = lambda *shape: torch.randn(shape, device="cuda").requires_grad_()  # noqa: E731
    make = lambda *shape: torch.randn(shape, device="cuda").to(kind).requires_grad_()  # noqa: E731
    x, bias, qkv = make(images, 197, DIM), make(DIM), make(3 * DIM, DIM)
    taps, mixes = [None, make(DIM, 1, 3, 3), make(DIM, 1, 5, 5)], [make(DIM, DIM) for _ in range(3)]
    report("linear 192 to 576", lambda: F.linear(x, qkv), [x, qkv])
    report("linear 192 to 192", lambda: F.linear(x, mixes[0]), [x, mixes[0]])
    leaves = [x, bias, *(t for t in taps if t is not None), *mixes]
    report("LIFE kernels", lambda: multi_scale(x, taps, mixes, bias, lattice), leaves)
    report("LIFE plain", lambda: plain_life(x, taps, mixes, bias, lattice), leaves)
    h, w3, shift = make(images, 197, HIDDEN), make(HIDDEN, 1, 3, 3), make(HIDDEN)
    report("3x3 over 768 kernel", lambda: depthwise_groups(h, (w3,), (HIDDEN,), 1, lattice), [h, w3])
    report("3x3 over 768 plain", lambda: depthwise_reference(h, (w3,), (HIDDEN,), 1, lattice), [h, w3])
    report("hidden, folded", lambda: hidden_triton.hidden_tokens(h, w3, shift, 14, 14, 1, 1, 1, True)[0], [])
    norms = [full(HIDDEN) for _ in range(4)]
    squeeze = [full(4, HIDDEN), full(4), full(HIDDEN, 4), full(HIDDEN)]
    rest = (norms[:2], full(HIDDEN, 1, 3, 3), norms[2:], [1e-5, 1e-5], squeeze)
    given = [h, *norms, rest[1], *squeeze]
    report("hidden, normalised", lambda: batch_hidden_tokens(h, *rest, 14, 14, 1, 1)[0], given)
    slow = lambda: batch_hidden_reference(h, *rest, nn.Hardswish(), lattice)  # noqa: E731
    report("hidden, normalised, plain", slow, given)
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


def report(name: str, f: Callable[[], Tensor], leaves: Leaves) -> None:
    """Print the time of each kernel that takes part."""
    with torch.no_grad():
        forward = spent(f)
    line = f"{name:28} forward {sum(forward.values()):7.1f} us"
    if leaves:
        grad = torch.randn_like(f())
        whole = spent(lambda: torch.autograd.grad(f(), leaves, grad))
        line += f"  step {sum(whole.values()):7.1f} us"
        longest = sorted(whole.items(), key=lambda pair: -pair[1])[:9]
        line += "   " + ", ".join(f"{kernel[:24]} {each:.0f}" for kernel, each in longest)
    print(line, flush=True)


def sweep(images: int, chosen: list[str]) -> None:
    """Time the kernels' knobs, one kernel at a time."""
    kind, lattice = torch.bfloat16, (14, 14, 1)
    make = lambda *shape: torch.randn(shape, device="cuda").to(kind)  # noqa: E731
    full = lambda *shape: torch.randn(shape, device="cuda")  # noqa: E731
    Place = convolve_triton.Place
    h, line = make(images, 197, HIDDEN), rows_triton.Line(*(full(HIDDEN) for _ in range(4)))

    def project() -> None:
        x, out, mix = make(images * 197, DIM), make(images * 197, 3 * DIM), make(DIM, DIM)
        values = [(64, 4, 2), (64, 8, 2), (64, 8, 3), (128, 8, 2), (128, 8, 3)]
        f = lambda: project_triton.project(x, mix, None, out, DIM, 64)  # noqa: E731
        knobs(project_triton, ("TILE", "WARPS", "STAGES"), values, f)

    def convolve() -> None:
        for dim, side in ((DIM, 3), (DIM, 5), (HIDDEN, 3)):
            y, to, taps = make(images, 197, dim), make(images, 197, dim), make(dim, 1, side, side)
            work = "WORK" if side > 3 else "WORK_SMALL"
            values = list(itertools.product((1, 2, 4, 6), (7, 14), (256,) if side > 3 else (512, 256)))
            f = lambda: convolve_triton.convolve(Place(y), taps, Place(to), lattice, (dim, 1))  # noqa: E731
            print(f"{side}x{side} over {dim}")
            knobs(convolve_triton, ("AHEAD", "STRIP", work), values, f)

    def back() -> None:
        x, y, to = make(images, 197, 3 * DIM), make(images, 197, DIM), make(images, 197, DIM)
        for side in (3, 5):
            taps, add = make(DIM, 1, side, side), Place(x, DIM, 64)
            f = lambda: convolve_triton.convolve(Place(y), taps, Place(to), lattice, (64, 3), flip=True, add=add)  # noqa: E731
            print(f"{side}x{side}, backward, with its sum")
            knobs(convolve_triton, ("BESIDE", "AHEAD"), [(1, 6), (3, 6), (6, 6), (3, 3)], f)
        g, weight = make(images, 197, HIDDEN), make(HIDDEN, 1, 3, 3)
        f = lambda: convolve_triton.convolve(  # noqa: E731
            Place(g),
            weight,
            Place(torch.empty_like(g)),
            lattice,
            (HIDDEN, 1),
            flip=True,
            around=(1, 0),
            line=line,
            back=h,
        )
        print("3x3 over 768, backward")
        knobs(convolve_triton, ("BESIDE", "AHEAD", "WORK_SMALL"), [(3, 6, 512), (1, 6, 512), (3, 4, 256)], f)

    def taps() -> None:
        for dim, side, drawn in ((DIM, 3, None), (DIM, 5, None), (HIDDEN, 3, line)):
            x, grad, weight = make(images, 197, dim), make(images, 197, dim), make(dim, 1, side, side)
            f = lambda: taps_triton.tap_gradient(  # noqa: E731
                Place(x), Place(grad), weight, lattice, (dim, 1), line=drawn, before=1 if drawn else 0
            )
            print(f"taps {side}x{side} over {dim}")
            knobs(taps_triton, ("AHEAD", "PROGRAMS"), list(itertools.product((4, 1), (396, 528, 1056))), f)

    def rows() -> None:
        factor = full(images, HIDDEN)
        sums = lambda: rows_triton.gate_sums(h, h, 1, line, 1)  # noqa: E731
        knobs(rows_triton, ("SUMMED_ROWS", "STAGES"), [(16, 4), (16, 2), (32, 2), (32, 4), (16, 6)], sums)
        slope = lambda: rows_triton.through(h, h, 1, line, line[:2], act=1, gate=(factor, factor))  # noqa: E731
        values = [(32, 128, 4), (16, 128, 4), (64, 128, 4), (32, 64, 4), (32, 128, 8)]
        knobs(rows_triton, ("ROWS", "WIDE", "WARPS"), values, slope)

    def mean() -> None:
        z = make(images, 197, DIM)
        values = [(32, 4), (16, 4), (16, 8), (64, 3), (32, 6)]
        knobs(mean_triton, ("ROWS", "AHEAD"), values, lambda: mean_triton.run_mean(z))

    for part in (project, convolve, back, taps, rows, mean):
        if part.__name__ in chosen or not chosen:
            part()


def knobs(module: ModuleType, names: tuple[str, ...], values: list[tuple[int, ...]], f: Callable[[], object]) -> None:
    """Print the longest kernel's time under each setting; put the first back."""
    before = [getattr(module, name) for name in names]
    for each in (*values, before):
        for name, value in zip(names, each, strict=True):
            setattr(module, name, value)
        if each is before:
            return
        try:
            kernel, time = max(spent(f).items(), key=lambda pair: pair[1])
            told = " ".join(f"{name} {value}" for name, value in zip(names, each, strict=True))
            print(f"  {kernel[:20]} {told}: {time:.1f} us", flush=True)
        except Exception as problem:  # a setting that the GPU has no room for
            print(f"  {each}: {str(problem).strip().splitlines()[0][:80]}", flush=True)


if __name__ == "__main__":
    main()
