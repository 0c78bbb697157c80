"""Train every variant with every seed, and gather what came of it."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from glocal._version import __version__
from glocal.compare.figures import Figures, measure
from glocal.compare.plan import Plan, Variant
from glocal.data.images import MemoryImages, Pair
from glocal.data.sources import in_memory
from glocal.errors import GlocalError
from glocal.recipes.run import build, image_size, run
from glocal.train import checkpoint
from glocal.train.journal import read
from glocal.train.plain import plain
from glocal.train.screen import Screen, clock


@dataclass(frozen=True)
class Result:
    """One finished run: its last evaluation and its curve."""

    variant: str
    seed: int
    metrics: dict[str, Any]
    curve: list[dict[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Everything the table and the report are made of."""

    plan: Plan
    classes: tuple[str, ...]
    images: tuple[int, int]
    figures: dict[str, Figures]
    results: tuple[Result, ...]
    command: str
    seconds: float

    def of(self, variant: str) -> list[Result]:
        """Give one variant's runs in the order of seeds."""
        return sorted((each for each in self.results if each.variant == variant), key=lambda each: each.seed)

    def top1(self, variant: str) -> list[float]:
        """Give one variant's accuracies in the order of seeds."""
        return [each.metrics["top1"] for each in self.of(variant)]


def compare(plan: Plan, pair: Pair, folder: Path, show: Screen, *, resume: bool = False) -> Comparison:
    """Run the plan. Finished runs of an interrupted comparison are not repeated."""
    if (folder / "runs").exists() and not resume:
        raise GlocalError(f"{folder} holds a comparison already. Continue it with --resume, or choose another with -o.")
    began = time.monotonic()
    pair = in_memory(pair, plan.recipe.data, image_size(plan.recipe))
    for note in (*plan.notes, *pair.notes):
        show.note(note)
    pair = Pair(pair.train, pair.val)
    figures = {each.name: _figures(plan, each, pair) for each in plan.variants}  # refuses misfits before any training
    _few_threads(figures, plan.recipe.data.batch_size)
    _same_plan(plan, folder)
    results: list[Result] = []
    runs = list(plan.runs())
    for i, (variant, seed, recipe) in enumerate(runs, start=1):
        place = folder / "runs" / f"{_safe(variant.name)}-seed{seed}"
        if not (place / "metrics.json").exists():
            title = f"{variant.name}, seed {seed} ({i}/{len(runs)})"
            outcome = run(recipe, place, resume=resume, show=show, title=title, pair=pair)
            took = outcome.metrics["seconds"]
            show.note(f"{title}: {outcome.metrics['top1']:.2f} % after {clock(took)}")
        results.append(_result(variant, seed, place))
    return Comparison(
        plan,
        pair.train.classes,
        (len(pair.train), len(pair.val)),
        figures,
        tuple(results),
        " ".join(["glocal", *sys.argv[1:]]),
        time.monotonic() - began,
    )


def versions() -> dict[str, str]:
    """Tell what made these figures."""
    names = ("torch", "timm", "torchvision", "accelerate", "numpy")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "glocal": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "device": f"{device}, {torch.get_num_threads()} threads" if not torch.cuda.is_available() else device,
    }


def _figures(plan: Plan, variant: Variant, pair: Pair) -> Figures:
    from dataclasses import replace

    torch.manual_seed(0)
    model = build(replace(plan.recipe, mechanisms=variant.mechanisms), pair)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    channels = pair.train.pixels.shape[1] if isinstance(pair.train, MemoryImages) else 3
    return measure(model, image_size(plan.recipe), channels, plan.recipe.data.batch_size)


def _few_threads(figures: dict[str, Figures], batch: int) -> None:
    """Give tiny models one thread: handing work around costs them more than the work, on a busy machine ten times."""
    if not torch.cuda.is_available() and batch * max(each.gmacs for each in figures.values()) < 1:
        torch.set_num_threads(1)


def _same_plan(plan: Plan, folder: Path) -> None:
    """Leave the plan in the folder, so that a resume with another plan is noticed."""
    now = json.loads(
        json.dumps({"recipe": plain(plan.recipe), "seeds": plan.seeds, "variants": [v.name for v in plan.variants]})
    )
    path = folder / "plan.json"
    if path.exists() and json.loads(path.read_text()) != now:
        raise GlocalError(
            f"{folder} was begun with other settings. Repeat its command (see plan.json), or choose another folder."
        )
    checkpoint.write_json(path, now)


def _result(variant: Variant, seed: int, place: Path) -> Result:
    log = read(place / "log.jsonl")
    curve = [line for line in log if "val_top1" in line or "loss" in line]
    return Result(variant.name, seed, json.loads((place / "metrics.json").read_text()), curve)


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_+." else "_" for letter in name)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Give every figure, run by run."""
    return {
        "command": comparison.command,
        "versions": versions(),
        "seconds": comparison.seconds,
        "recipe": plain(comparison.plan.recipe),
        "classes": list(comparison.classes),
        "images": {"train": comparison.images[0], "validation": comparison.images[1]},
        "figures": {name: asdict(each) for name, each in comparison.figures.items()},
        "runs": [asdict(each) for each in comparison.results],
    }
