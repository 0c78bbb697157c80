"""Where a compiled model's time goes on a GPU: its own time, the sum of its kernels, and the longest of them.

python benchmarks/breakdown.py life infer:256 graph:1 train:256
python benchmarks/breakdown.py host train:512:32 --plain

A job is what is done, the batch and the pixels (224): `infer` compiled, `graph` as a CUDA graph, `eager`, `train` and
`train-graph`, in bf16 on DeiT-T. `turns.py` times several models turn by turn.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from glocal.kernels import dispatch
from glocal.mechanisms import named
from glocal.optimize import compile_training, optimize
from glocal.zoo import create_model

Step = Callable[[], object]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Compile what is asked for, then time one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", help="host, or mechanisms such as life+cb")
    parser.add_argument("jobs", nargs="+", help="infer|graph|eager|train|train-graph : batch : pixels (224)")
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--plain", action="store_true", help="keep to plain PyTorch")
    parser.add_argument("--top", type=int, default=14)
    options = parser.parse_args()
    with dispatch.plain() if options.plain else contextlib.nullcontext():
        for job in options.jobs:
            step = prepare(options.model, options.variant, job)
            for _ in range(3):
                step()
            print(f"== {options.variant}{' plain' if options.plain else ''} {job}: {median(clocked(step, 30)):.3f} ms")
            print(told(step, options.top), flush=True)


def prepare(name: str, variant: str, job: str) -> Step:
    """Give what a job does at each step; its first call compiles."""
    kind, batch, *rest = job.split(":")
    side = int(rest[0]) if rest else 224
    small = {"patch_size": 4} if side <= 64 else {}
    mechanisms = () if variant == "host" else named(variant)
    torch.manual_seed(0)
    model = create_model(name, *mechanisms, img_size=side, num_classes=100, **small).to(DEVICE)
    images = torch.randn(int(batch), 3, side, side, device=DEVICE)
    if kind.startswith("train"):
        return _train(model, images, graphs=kind.endswith("graph"))
    model, images = model.eval().bfloat16(), images.bfloat16()
    run = model if kind == "eager" else optimize(model, graphs=kind == "graph", dynamic=False)

    def infer() -> object:
        with torch.inference_mode():
            return run(images)

    return infer


def _train(model: torch.nn.Module, images: torch.Tensor, *, graphs: bool) -> Step:
    run = compile_training(model.train(), graphs=graphs, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    labels = torch.randint(100, (images.shape[0],), device=DEVICE)

    def train() -> object:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train


def clocked(step: Step, count: int) -> list[float]:
    """Give the milliseconds of each step, from its launch to its end."""
    times: list[float] = []
    for _ in range(count):
        if DEVICE == "cpu":
            began = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - began))
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def told(step: Step, top: int, rounds: int = 5) -> str:
    """Tell how long a step's kernels take in all, and which take longest."""
    if DEVICE == "cpu":
        return "   no GPU, no kernels"
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / rounds / 1e3
    lines = [f"   {total:8.3f} ms in {sum(row.count for row in rows) // rounds} kernels"]
    for row in rows[:top]:
        spent, calls = row.self_device_time_total / 1e3, row.count
        lines.append(
            f"   {spent / rounds:8.3f} ms {calls // rounds:4d} x {spent / calls * 1e3:7.1f} us  {row.key[:90]}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
