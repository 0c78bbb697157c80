"""What watching costs: time and peak memory of a forward pass, unwatched and watched in every way.

python benchmarks/watch.py --model vit_small_patch16_224 --depth 24 --size 1024 --batch 1

Each way runs in a process of its own, so that peaks do not hide each other. `unfused` is what people do without
`watch`: the fused kernel off, and a hook on every map.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import timm
import torch
from torch import nn

from glocal.explain import RollOut, keep, watch

WAYS = ("unwatched", "idle", "whole maps", "mean of heads", "entropy", "roll-out", "one place", "unfused")


def main() -> None:
    """Measure every way and print a table, or one way as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--way", choices=WAYS)
    args = parser.parse_args()
    if args.way is not None:
        print(json.dumps(measure(args)))
        return
    rows = {way: _alone(way) for way in WAYS}
    plain = rows["unwatched"]
    layers = f", {args.depth} layers" if args.depth else ""
    print(f"{args.model}{layers}, {args.size} px, batch {args.batch}, {args.device}, {args.dtype}")
    print(f"{'way':<16}{'ms':>10}{'times':>8}{'peak MiB':>10}{'more MiB':>10}")
    for way, row in rows.items():
        if "error" in row:
            print(f"{way:<16}  {row['error']}")
            continue
        ratio = row["ms"] / plain["ms"]
        print(f"{way:<16}{row['ms']:>10.1f}{ratio:>8.2f}{row['mib']:>10.0f}{row['mib'] - plain['mib']:>+10.0f}")


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Time passes of one way and read the peak memory."""
    torch.manual_seed(0)
    extra: dict[str, Any] = {} if args.depth is None else {"depth": args.depth}
    model = (
        timm.create_model(args.model, img_size=args.size, **extra).eval().to(args.device, getattr(torch, args.dtype))
    )
    images = torch.randn(args.batch, 3, args.size, args.size).to(args.device, getattr(torch, args.dtype))
    begin = _way(args.way, model)
    times: list[float] = []
    torch.set_num_threads(1)
    # On the CPU processor time counts, so that a busy machine does not.
    clock = time.perf_counter if args.device == "cuda" else time.process_time
    with torch.no_grad():
        for _ in range(args.passes + 1):
            _wait(args.device)
            start = clock()
            with begin():
                model(images)
            _wait(args.device)
            times.append(1000 * (clock() - start))
    return {"ms": statistics.median(times[1:]), "mib": _peak(args.device)}


def _way(way: str, model: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    def rolled() -> AbstractContextManager[Any]:
        roll = RollOut()
        return watch(model, heads="mean", each=lambda look: roll.add(look.square, look.queries))

    if way == "unfused":
        return _unfused(model)
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "unwatched": nullcontext,
        "idle": lambda: watch(model, layers=()),
        "whole maps": lambda: watch(model),
        "mean of heads": lambda: watch(model, heads="mean"),
        "entropy": lambda: watch(model, reduce=keep.entropy),
        "roll-out": rolled,
        "one place": lambda: watch(model, reduce=keep.Query(0.5, 0.5)),
    }
    return ways[way]


def _unfused(model: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    maps: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if "fused_attn" in vars(module):
            module.fused_attn = False  # type: ignore[assignment]
        if name.endswith("attn_drop"):
            module.register_forward_hook(lambda m, args, out, name=name: maps.__setitem__(name, out))
    return nullcontext


def _alone(way: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, *sys.argv, "--way", way], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:90]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux


if __name__ == "__main__":
    main()
