"""Where a compiled model's time goes on a GPU: its own time, the sum of its kernels, and the longest of them.

python benchmarks/breakdown.py life infer:256 infer:1 train:256
python benchmarks/breakdown.py host train:512:32 --plain
python benchmarks/breakdown.py life infer:256 --ready r.life --go go   # compile now, measure once `go` is there
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from glocal.kernels import dispatch
from glocal.mechanisms import named
from glocal.optimize import compile_training, optimize
from glocal.zoo import create_model

Step = Callable[[], object]


def main() -> None:
    """Compile what is asked for, then time one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", help="host, or mechanisms such as life+cb")
    parser.add_argument("jobs", nargs="+", help="infer|graph|eager|train|train-graph : batch : pixels (224)")
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--plain", action="store_true", help="keep to plain PyTorch")
    parser.add_argument("--ready", type=Path, help="write this file once all is compiled")
    parser.add_argument("--go", type=Path, help="wait for this file before measuring")
    parser.add_argument("--top", type=int, default=14)
    options = parser.parse_args()
    with dispatch.plain() if options.plain else contextlib.nullcontext():
        steps = {job: _step(options, job) for job in options.jobs}
        for step in steps.values():
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        if options.ready:
            options.ready.touch()
        while options.go and not options.go.exists():
            time.sleep(0.2)
        with (Path(tempfile.gettempdir()) / "glocal-breakdown.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            for job, step in steps.items():
                _tell(f"{options.variant}{' plain' if options.plain else ''} {job}", step, options.top)


def _step(options: argparse.Namespace, job: str) -> Step:
    kind, batch, *rest = job.split(":")
    side = int(rest[0]) if rest else 224
    small = {"patch_size": 4} if side <= 64 else {}
    mechanisms = () if options.variant == "host" else named(options.variant)
    torch.manual_seed(0)
    model = create_model(options.model, *mechanisms, img_size=side, num_classes=100, **small).cuda()
    images = torch.randn(int(batch), 3, side, side, device="cuda")
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
    labels = torch.randint(100, (images.shape[0],), device="cuda")

    def train() -> object:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train


def _tell(name: str, step: Step, top: int) -> None:
    times: list[float] = []
    for _ in range(30):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    rounds = 5
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(rounds):
            step()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows) / rounds / 1e3
    count = sum(row.count for row in rows) // rounds
    print(f"== {name}: {median(times):.3f} ms by the clock, {total:.3f} ms in {count} kernels", flush=True)
    for row in rows[:top]:
        spent, calls = row.self_device_time_total / 1e3, row.count
        print(f"   {spent / rounds:8.3f} ms {calls // rounds:4d} x {spent / calls * 1e3:7.1f} us  {row.key[:90]}")


if __name__ == "__main__":
    main()
