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
    options = parser.parse_args()
    if options.cpu:
        options.batch, options.steps = 16, 3
    print(f"{'variant':<12} {'mode':<9} {'bare':>9} {'loop':>9} {'loop/bare':>9} {'augmented':>9}   images per second")
    for variant in options.variants or ["", "life", "local-ffn"]:
        for compiled in (False, True) if not options.cpu else (False,):
            _row(variant, compiled, options)


def _row(variant: str, compiled: bool, options: argparse.Namespace) -> None:
    recipe = _recipe(variant, compiled, options)
    light = replace(recipe, data=replace(recipe.data, augment=PRESETS["none"]), mix=MixSettings(smoothing=0.1))
    # Turn about, three times: clocks and caches drift, and the best of each is what the machine can do.
    bare, loop, full = (max(each) for each in zip(*(_round(recipe, light, options) for _ in range(3)), strict=True))
    name, mode = variant or "host", "compiled" if compiled else "eager"
    print(f"{name:<12} {mode:<9} {bare:9,.0f} {loop:9,.0f} {loop / bare:9.3f} {full:9,.0f}", flush=True)


def _round(recipe: Recipe, light: Recipe, options: argparse.Namespace) -> tuple[float, float, float]:
    bare = _speed(_bare_step(light, options.cpu), options)
    with tempfile.TemporaryDirectory() as folder:
        loop = _speed(_loop_step(light, Path(folder)), options)
        full = _speed(_loop_step(recipe, Path(folder)), options)
    return bare, loop, full


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
