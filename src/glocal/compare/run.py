"""Train every variant with every seed, and gather what came of it."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from glocal._version import __version__
from glocal.compare.attention import Strip, strips
from glocal.compare.figures import Figures, measure
from glocal.compare.parallel import Job, run_jobs
from glocal.compare.plan import Plan, Variant, with_epochs
from glocal.data.images import MemoryImages, Pair
from glocal.data.sources import in_memory
from glocal.errors import GlocalError
from glocal.measure.cost import cost
from glocal.recipes.run import build, image_size, run
from glocal.train import checkpoint
from glocal.train.journal import read
from glocal.train.plain import differences, plain
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
    looks: tuple[Strip, ...] = ()

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
    models = {each.name: _model(plan, each, pair) for each in plan.variants}  # refuses misfits before any training
    tiny = _is_tiny(models, plan, pair)
    if tiny:
        torch.set_num_threads(1)  # handing work around costs tiny models more than the work
    figures = {name: _figures(model, plan, pair) for name, model in models.items()}
    _same_plan(plan, folder)
    runs = [(variant, seed, _place(folder, variant, seed), recipe) for variant, seed, recipe in plan.runs()]
    jobs = [Job(f"{v.name}, seed {seed}", recipe, place, resume) for v, seed, place, recipe in runs]
    _train([job for job in jobs if not job.done()], pair, show, os.cpu_count() or 1 if tiny else 1)
    results = [_result(variant, seed, place) for variant, seed, place, _ in runs]
    return Comparison(
        plan,
        pair.train.classes,
        (len(pair.train), len(pair.val)),
        figures,
        tuple(results),
        " ".join(["glocal", *sys.argv[1:]]),
        time.monotonic() - began,
        tuple(strips(_first_models(plan, folder), pair, image_size(plan.recipe))),
    )


def begun(plan: Plan, folder: Path) -> Plan | None:
    """Give a plan the epochs its folder was begun with, since a budget would not be measured the same again."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    epochs: int = json.loads(path.read_text())["recipe"]["epochs"]
    return replace(plan, recipe=with_epochs(plan.recipe, epochs))


def versions() -> dict[str, str]:
    """Tell what made these figures."""
    names = ("torch", "timm", "torchvision", "accelerate", "numpy")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "glocal": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "device": device if torch.cuda.is_available() else f"{device}, {os.cpu_count()} cores",
    }


def _first_models(plan: Plan, folder: Path) -> dict[str, Path]:
    return {each.name: _place(folder, each, plan.seeds[0]) / "model.safetensors" for each in plan.variants}


def _train(jobs: list[Job], pair: Pair, show: Screen, workers: int) -> None:
    if workers > 1 and len(jobs) > 1:
        steps = jobs[0].recipe.epochs * (len(pair.train) // jobs[0].recipe.data.batch_size)
        run_jobs(jobs, pair, workers, steps, show)
        return
    for i, job in enumerate(jobs, start=1):
        title = f"{job.title} ({i}/{len(jobs)})"
        metrics = run(job.recipe, job.folder, resume=job.resume, show=show, title=title, pair=pair).metrics
        show.note(f"{title}: {metrics['top1']:.2f} % after {clock(metrics['seconds'])}")


def _model(plan: Plan, variant: Variant, pair: Pair) -> nn.Module:
    torch.manual_seed(0)
    model = build(replace(plan.recipe, mechanisms=variant.mechanisms), pair)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _is_tiny(models: dict[str, nn.Module], plan: Plan, pair: Pair) -> bool:
    """Tell whether one step is so little work that one core does it best, and the images fit into each worker."""
    if torch.cuda.is_available() or not isinstance(pair.train, MemoryImages):
        return False
    most = max(cost(model, image_size(plan.recipe)).gmacs for model in models.values())
    return plan.recipe.data.batch_size * most < 1 and pair.train.pixels.numel() < 2**28


def _figures(model: nn.Module, plan: Plan, pair: Pair) -> Figures:
    channels = pair.train.pixels.shape[1] if isinstance(pair.train, MemoryImages) else 3
    return measure(model, image_size(plan.recipe), channels, plan.recipe.data.batch_size)


def _same_plan(plan: Plan, folder: Path) -> None:
    """Leave the plan in the folder, so that a resume with another plan is noticed."""
    now = json.loads(
        json.dumps({"recipe": plain(plan.recipe), "seeds": plan.seeds, "variants": [v.name for v in plan.variants]})
    )
    path = folder / "plan.json"
    if path.exists() and (changed := differences(json.loads(path.read_text()), now)):
        raise GlocalError(
            f"{folder} was begun with other settings: {'; '.join(changed[:3])}. "
            f"Repeat its own command, or choose another folder."
        )
    checkpoint.write_json(path, now)


def _result(variant: Variant, seed: int, place: Path) -> Result:
    log = read(place / "log.jsonl")
    curve = [line for line in log if "val_top1" in line or "loss" in line]
    return Result(variant.name, seed, json.loads((place / "metrics.json").read_text()), curve)


def _place(folder: Path, variant: Variant, seed: int) -> Path:
    return folder / "runs" / f"{_safe(variant.name)}-seed{seed}"


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
