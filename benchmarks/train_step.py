"""Set the loop's training step beside a bare hand-written one around the same compiled model.

python benchmarks/train_step.py            one GPU, DeiT-T patch 4 at 32 pixels, batch 512, bf16
python benchmarks/train_step.py --cpu      a few tiny steps, to see that it runs
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from glocal.data.images import MemoryImages, Pair
from glocal.data.settings import PRESETS, DataSettings
from glocal.mechanisms import named
from glocal.optimize import compile_training
from glocal.recipes.run import accelerate, prepare
from glocal.train.screen import Silent
from glocal.train.settings import HostSettings, MixSettings, OptimSettings, Recipe
from glocal.zoo import create_model


def main() -> None:
    """Time both steps for each variant and print images per second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--with", dest="variants", action="append", default=None)
    parser.add_argument("--mode", choices=("eager", "compiled"), action="append", default=None)
    parser.add_argument("--go", type=Path, help="compile, then wait for this file before measuring")
    options = parser.parse_args()
    if options.cpu:
        options.batch, options.steps = 16, 3
    modes = options.mode or (["eager"] if options.cpu else ["eager", "compiled"])
    print(f"{'variant':<12} {'mode':<9} {'bare':>9} {'loop':>9} {'loop/bare':>17} {'augmented':>9}   images per second")
    for variant in options.variants or ["", "life", "local-ffn"]:
        for mode in modes:
            _row(variant, mode, options)


def _row(variant: str, mode: str, options: argparse.Namespace) -> None:
    recipe = _recipe(variant, mode == "compiled", options)
    light = replace(recipe, data=replace(recipe.data, augment=PRESETS["none"]), mix=MixSettings(smoothing=0.1))
    with tempfile.TemporaryDirectory() as folder:
        steps = _bare_step(light, options.cpu), *(_loop_step(each, Path(folder)) for each in (light, recipe))
        for step in steps:
            _speed(step, options)  # compiles, fills caches
        while options.go and not options.go.exists():
            time.sleep(0.2)
        # Turn about: clocks and caches drift.
        rounds = [[_speed(step, options) for step in steps] for _ in range(5)]
    bare, loop, full = (median(each) for each in zip(*rounds, strict=True))
    ratios = [each[1] / each[0] for each in rounds]
    told = f"{median(ratios):.3f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    print(f"{variant or 'host':<12} {mode:<9} {bare:9,.0f} {loop:9,.0f} {told:>17} {full:9,.0f}", flush=True)


def _recipe(variant: str, compiled: bool, options: argparse.Namespace) -> Recipe:
    small = {"embed_dim": 24, "depth": 2, "num_heads": 3} if options.cpu else {}
    return Recipe(
        host=HostSettings("deit_tiny_patch16_224", arguments={"img_size": 32, "patch_size": 4, **small}),
        data=DataSettings("random", size=32, batch_size=options.batch, augment=PRESETS["deit_small"]),
        epochs=1000,
        mechanisms=named(variant) if variant else (),
        optim=OptimSettings(lr=5e-4),
        mix=MixSettings(mixup=0.8, cutmix=1.0, smoothing=0.1),
        precision="bf16",
        compile=compiled,
        log_every=50,
        trackers=(),
    )


def _images(batch: int) -> Pair:
    count = 64 * batch
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = MemoryImages(pixels, torch.arange(count) % 100, tuple(map(str, range(100))))
    return Pair(images, images.take(torch.arange(batch)))


def _loop_step(recipe: Recipe, folder: Path) -> Callable[[], None]:
    """What `glocal train` does for each step, logging included."""
    loop = prepare(recipe, _images(recipe.data.batch_size), accelerate(recipe, folder), folder, Silent())
    loop.net.train()
    batches: Any = iter(())

    def step() -> None:
        nonlocal batches
        parts = next(batches, None)
        if parts is None:
            batches = loop.task.batches(loop.step // loop.task.steps, 0)
            parts = next(batches)
        loop._update(0, parts)
        if loop.step % recipe.log_every == 0:
            loop._log(0, 0.0)

    return step


def _bare_step(recipe: Recipe, cpu: bool) -> Callable[[], None]:
    """The shortest training step that does the same sums on a batch that lies ready."""
    device = "cpu" if cpu else "cuda"
    model = (
        create_model(recipe.host.name, *recipe.mechanisms, num_classes=100, **recipe.host.arguments).to(device).train()
    )
    net: Any = compile_training(model) if recipe.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    images = torch.randn(recipe.data.batch_size, 3, 32, 32, device=device)
    labels = torch.randint(0, 100, (recipe.data.batch_size,), device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _speed(step: Callable[[], None], options: argparse.Namespace) -> float:
    for _ in range(max(options.steps // 5, 2)):
        step()
    _wait(options.cpu)
    began = time.perf_counter()
    for _ in range(options.steps):
        step()
    _wait(options.cpu)
    return options.steps * options.batch / (time.perf_counter() - began)


def _wait(cpu: bool) -> None:
    if not cpu:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
