"""Train every mechanism in bf16, eager and compiled, and set the losses side by side.

python benchmarks/compiled_training.py [--steps 400] [--only life] [--only dtm]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from glocal.data.images import MemoryImages, Pair
from glocal.data.settings import DataSettings
from glocal.mechanisms import named
from glocal.recipes.run import accelerate, prepare
from glocal.train.screen import Silent
from glocal.train.settings import HostSettings, MixSettings, OptimSettings, Recipe

VIT = ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 6})
SWIN = ("swin_tiny_patch4_window7_224", {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (2, 2, 2, 2)})
CASES = [
    (VIT, ""),
    (VIT, "life"),
    (VIT, "local-ffn"),
    (VIT, "cb"),
    (VIT, "cbs"),
    (VIT, "uniform-head"),
    (VIT, "squeeze-context"),
    (VIT, "conv-stem"),
    (VIT, "early-mlp(layers=(0,1))"),
    (SWIN, "dtm"),
    (SWIN, "life+local-ffn+cbs+dtm"),
]


def _shapes(count: int = 4096) -> Pair:
    """Discs, squares, crosses and stripes of many sizes, places and shades, with noise."""
    draw = torch.Generator().manual_seed(0)
    kind = torch.arange(count) % 4
    place = 8 + 16 * torch.rand(count, 2, 1, 1, generator=draw)
    size = 4 + 5 * torch.rand(count, 1, 1, generator=draw)
    grid = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij"))
    y, x = (grid - place).unbind(1)
    masks = torch.stack(
        [
            (y**2 + x**2) < size**2,
            (y.abs() < size) & (x.abs() < size),
            (y.abs() < size / 3) | (x.abs() < size / 3),
            ((y + x) % 6 < 3) & (y.abs() < size) & (x.abs() < size),
        ]
    )
    picked = masks[kind, torch.arange(count)].float()[:, None] * 120
    noise = 60 * torch.rand(count, 3, 32, 32, generator=draw)
    pixels = (picked * (0.5 + torch.rand(count, 3, 1, 1, generator=draw)) + noise).clamp(0, 255).to(torch.uint8)
    images = MemoryImages(pixels, kind, ("disc", "square", "cross", "stripes"))
    return Pair(images.take(torch.arange(512, count)), images.take(torch.arange(512)))


def losses(case: tuple[tuple[str, dict], str], compiled: bool, folder: Path, steps: int = 400) -> torch.Tensor:
    """Train so many steps in bf16 and give the loss of each."""
    (host, arguments), mechanisms = case
    recipe = Recipe(
        host=HostSettings(host, arguments=arguments),
        data=DataSettings("shapes", size=32, batch_size=128),
        epochs=100,
        mechanisms=named(mechanisms) if mechanisms else (),
        optim=OptimSettings(lr=5e-4, warmup_epochs=2),
        mix=MixSettings(smoothing=0.1),
        precision="bf16",
        compile=compiled,
        trackers=(),
    )
    loop = prepare(recipe, _shapes(), accelerate(recipe, folder), folder, Silent())
    found: list[torch.Tensor] = []
    while loop.step < steps:
        for parts in loop.task.batches(loop.step // loop.task.steps, 0):
            loop.running.zero_()
            loop._update(loop.step // loop.task.steps, parts)
            found.append(loop.running.clone())
    return torch.stack(found[:steps]).cpu()


def main() -> None:
    """Print the first and the last losses of each case, both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--only", action="append", default=None)
    options = parser.parse_args()
    print("mean loss of the last 50 steps")
    print(f"{'host':<6} {'mechanisms':<26} {'start':>7} {'eager':>7} {'compiled':>9} {'apart':>7}")
    for case in CASES:
        if options.only and case[1] not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            eager, compiled = (losses(case, each, Path(folder), options.steps) for each in (False, True))
        ends = [float(each[-50:].mean()) for each in (eager, compiled)]
        name = f"{case[0][0].split('_')[0]:<6} {case[1] or 'host':<26}"
        print(f"{name} {float(eager[0]):7.3f} {ends[0]:7.3f} {ends[1]:9.3f} {ends[1] - ends[0]:+7.3f}", flush=True)


if __name__ == "__main__":
    main()
