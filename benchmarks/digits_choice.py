"""Choose the host, rate, augmentation and length of the digits demo without a look at the images it reports on.

python benchmarks/digits_choice.py -o docs/results/digits-choice.json

Only the training part of the digits is used. It is cut into three folds along its order, so that each fold is judged on
hands the others do not hold. The rule stands before the runs: a shape gets as many epochs as the demo has time for
(processor time of all its variants and seeds, so the length follows from the clock and not from a score), and among all
shapes, rates and augmentations the best *plain host* wins (mean top-1 of its last checkpoints over the folds; the
faster one where two are equal). No mechanism takes part in the choice; they are looked at after it, on the same folds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from glocal.compare.plan import DEFAULT_VARIANTS, plan, with_epochs
from glocal.data.images import MemoryImages, Pair
from glocal.data.sources import digits
from glocal.mechanisms import named
from glocal.recipes.run import run
from glocal.train.screen import Silent
from glocal.train.settings import Recipe

FOLDS = 3
SHAPES = ((48, 2), (48, 4), (96, 2))  # width and depth; heads of 16 channels; LIFE divides widths by three
RATES = (1e-3, 2e-3, 4e-3)
AUGMENTS = ("none", "shift")
DEMO_SEEDS, DEMO_SECONDS, DEMO_CORES = 3, 150, 2  # the demo may take four minutes; a slower machine is left the rest


@dataclass(frozen=True)
class Candidate:
    """One setting of the plain host."""

    width: int
    depth: int
    epochs: int
    lr: float
    augment: str

    def recipe(self, variant: str = "") -> Recipe:
        """Write the setting as `glocal compare` would."""
        host = f"vit_tiny_patch16_224(embed_dim={self.width},depth={self.depth},num_heads={self.width // 16})"
        made, _ = plan(host=host, epochs=self.epochs, lr=self.lr, augment=self.augment)
        return replace(made.recipe, mechanisms=named(variant) if variant else ())


def main() -> None:
    """Time the shapes, train the plain hosts, choose, and look at the mechanisms afterwards."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folds = _folds()
    seconds = {shape: _epoch_seconds(shape, folds[0]) for shape in SHAPES}
    lengths = {shape: _length(each) for shape, each in seconds.items()}
    print(f"processor seconds per epoch, all variants: {seconds}; epochs: {lengths}", flush=True)
    candidates = [
        Candidate(*shape, lengths[shape], lr, augment) for shape, lr, augment in product(SHAPES, RATES, AUGMENTS)
    ]
    scores = _scores([each.recipe() for each in candidates], folds, options.workers)
    ranked = sorted(
        zip(candidates, scores, strict=True),
        key=lambda each: (-fmean(each[1]), seconds[each[0].width, each[0].depth]),
    )
    chosen = ranked[0][0]
    variants = ["", *DEFAULT_VARIANTS]
    after = _scores([chosen.recipe(variant) for variant in variants], folds, options.workers)
    found = {
        "images": [[len(fold.train), len(fold.val)] for fold in folds],
        "seconds_per_epoch": {f"{width}x{depth}": round(each, 3) for (width, depth), each in seconds.items()},
        "candidates": [asdict(each) | {"top1": top1} for each, top1 in ranked],
        "chosen": asdict(chosen),
        "variants": {variant or "host": top1 for variant, top1 in zip(variants, after, strict=True)},
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(_text(found))


def _folds() -> list[Pair]:
    images = digits().train  # what is held out is never touched here
    assert isinstance(images, MemoryImages)
    parts = torch.arange(len(images)).tensor_split(FOLDS)
    rest = [torch.cat([part for j, part in enumerate(parts) if j != i]) for i in range(FOLDS)]
    return [Pair(images.take(most), images.take(part)) for most, part in zip(rest, parts, strict=True)]


def _epoch_seconds(shape: tuple[int, int], fold: Pair) -> float:
    """Measure one epoch's processor time, the host and all variants together; what starting costs falls out."""

    def spent(variant: str, epochs: int) -> float:
        recipe = with_epochs(Candidate(*shape, 1, 1e-3, "shift").recipe(variant), epochs)
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            run(recipe, Path(folder) / "run", show=Silent(), pair=fold)
            return time.process_time() - began

    whole = len(digits().train) / len(fold.train)  # the demo trains on all of the training part
    return sum((spent(variant, 4) - spent(variant, 1)) / 3 for variant in ("", *DEFAULT_VARIANTS)) * whole


def _length(seconds: float) -> int:
    most = DEMO_SECONDS * DEMO_CORES / (DEMO_SEEDS * seconds)
    return max(5, min(100, int(most / 5) * 5))


def _scores(recipes: Sequence[Recipe], folds: Sequence[Pair], workers: int) -> list[list[float]]:
    """Train each recipe on each fold; give the top-1 of the last checkpoints."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = [[pool.submit(_score, recipe, fold) for fold in folds] for recipe in recipes]
        return [[each.result() for each in row] for row in waiting]


def _score(recipe: Recipe, fold: Pair) -> float:
    with tempfile.TemporaryDirectory() as folder:
        top1: float = run(recipe, Path(folder) / "run", show=Silent(), pair=fold).metrics["top1"]
    host = recipe.host.arguments
    print(host["embed_dim"], host["depth"], recipe.epochs, recipe.optim.lr, recipe.data.augment.crop, top1, flush=True)
    return top1


def _text(found: dict[str, Any]) -> str:
    lines = ["| width | depth | epochs | rate | augmentation | top-1 by fold | mean |", "|---:" * 4 + "|---|---|---:|"]
    for each in found["candidates"]:
        folds = ", ".join(f"{top1:.1f}" for top1 in each["top1"])
        settings = f"{each['width']} | {each['depth']} | {each['epochs']} | {each['lr']:g} | {each['augment']}"
        lines.append(f"| {settings} | {folds} | {fmean(each['top1']):.2f} |")
    lines += ["", "| variant | top-1 by fold | mean |", "|---|---|---:|"]
    for name, top1 in found["variants"].items():
        lines.append(f"| {name} | {', '.join(f'{each:.1f}' for each in top1)} | {fmean(top1):.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
