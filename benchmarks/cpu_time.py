"""Set a host beside its variants by processor time on one thread: steadier than the clock on a machine with other work.

python benchmarks/cpu_time.py deit_tiny_patch16_224 1,8 life local-ffn cb
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch

import glocal


def main() -> None:
    """Print the median ratio over interleaved rounds; `!` after a variant folds it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    host, batches, *variants = sys.argv[1:]
    plain = glocal.create_model(host).eval()
    models = {"host": plain, "host again": plain}
    for variant in variants:
        model = glocal.enhance(plain, *glocal.named(variant.rstrip("!"))).eval()
        models[variant] = glocal.fold(model) if variant.endswith("!") else model
    for batch in map(int, batches.split(",")):
        images = torch.randn(batch, 3, 224, 224)
        times: dict[str, list[float]] = {name: [] for name in models}
        with torch.inference_mode():
            for turn in range(28 if batch == 1 else 10):
                for name, model in models.items():
                    start = time.process_time()
                    model(images)
                    if turn > 2:
                        times[name].append(time.process_time() - start)
        for name, taken in times.items():
            ratios = sorted(mine / theirs for mine, theirs in zip(taken, times["host"], strict=True))
            spread = f"{ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f}"
            best = min(taken) / min(times["host"])
            print(
                f"batch {batch} {name}: {median(taken) * 1e3:.1f} ms, ratio {median(ratios):.3f} ({spread}), "
                f"of minima {best:.3f}"
            )


if __name__ == "__main__":
    main()
