"""Train every variant with every seed, and gather what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from glocal._version import __version__
from glocal.compare.attention import Strip, strips
from glocal.compare.budget import Clock
from glocal.compare.crew import Crew
from glocal.compare.figures import Figures, measure
from glocal.compare.jobs import Job, at_a_stretch
from glocal.compare.plan import FEW, Plan, Variant, few_patches
from glocal.compare.rounds import Rounds, note_progress, progressed
from glocal.data.facts import facts
from glocal.data.images import MemoryImages, Pair
from glocal.data.sources import in_memory
from glocal.errors import GlocalError
from glocal.measure.cost import cost
from glocal.recipes.build import build, image_size
from glocal.train import checkpoint
from glocal.train.journal import read
from glocal.train.plain import differences, plain, refuse_others
from glocal.train.screen import Screen
from glocal.train.signals import Interrupted
from glocal.wrappers import OnLattice


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
    budget: float | None = None

    def of(self, variant: str) -> list[Result]:
        """Give one variant's runs in the order of seeds."""
        return sorted((each for each in self.results if each.variant == variant), key=lambda each: each.seed)

    def top1(self, variant: str) -> list[float]:
        """Give one variant's accuracies in the order of seeds."""
        return [each.metrics["top1"] for each in self.of(variant)]


def compare(
    plan: Plan,
    pair: Pair,
    folder: Path,
    show: Screen,
    *,
    resume: bool = False,
    budget: float | None = None,
    began: float | None = None,
) -> Comparison:
    """Run the plan, within a budget of seconds where one is given; finished runs of an earlier start are not repeated.

    `began` says since when the budget counts, by `time.monotonic`.
    """
    if (folder / "runs").exists() and not resume:
        raise GlocalError(f"{folder} holds a comparison already. Continue it with --resume, or choose another with -o.")
    clock = Clock(budget, began or time.monotonic(), progressed(folder)[0] if resume else 0.0)
    pair = in_memory(pair, plan.recipe.data, image_size(plan.recipe))
    for note in (*plan.notes, *pair.notes):
        show.note(note)
    pair = Pair(pair.train, pair.val)
    models = {each.name: _model(plan, each, pair) for each in plan.variants}  # refuses misfits before any training
    tiny = _is_tiny(models, plan, pair)
    if tiny:
        torch.set_num_threads(1)  # handing work around costs tiny models more than the work
    figures = {name: _figures(model, plan, pair) for name, model in models.items()}
    if "patch_size" not in plan.recipe.host.arguments:
        _tell_of_few_patches(models, show)
    clock.closing = _closing(figures)
    clock.refuse_spent()
    # Processes take some ten seconds to start.
    several = tiny and (budget is None or clock.left > 60)
    workers = min(os.cpu_count() or 1, len(plan.variants) * len(plan.seeds)) if several else 1
    with _begun_or_gone(folder), Crew(pair, workers, folder) as crew:
        plan = _trained(plan, folder, crew, clock, show)
    results = [_result(variant, seed, _place(folder, variant, seed)) for variant, seed, _ in plan.runs()]
    looks: list[Strip] = []
    if budget is None or clock.left > 0:
        looks = strips(_first_models(plan, folder), pair, image_size(plan.recipe))
    images = (len(pair.train), len(pair.val))
    command = shlex.join(["glocal", *sys.argv[1:]])
    return Comparison(
        plan, pair.train.classes, images, figures, tuple(results), command, clock.spent, tuple(looks), budget
    )


@contextlib.contextmanager
def _begun_or_gone(folder: Path) -> Iterator[None]:
    """Hold the folder. Where no run got as far as a checkpoint, nothing but logs stays, aside: the folder is free."""
    there = folder.exists()
    before = set(folder.iterdir()) if folder.is_dir() else set[Path]()
    with checkpoint.alone_in(folder):
        try:
            yield
        except (GlocalError, Interrupted, KeyboardInterrupt) as error:
            begun_before = before & {folder / "plan.json", folder / "runs"}
            if begun_before or any(folder.glob("runs/*/checkpoints/*.pt")):
                raise
            kept = _logs_kept(folder) if isinstance(error, GlocalError) else None
            for path in set(folder.iterdir()) - before - {kept}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if kept is not None:
                raise GlocalError(f"{error} What was logged until then is in {kept}.") from None
            if not there:
                folder.rmdir()
            raise


def _logs_kept(folder: Path) -> Path | None:
    """Put the logs of stopped runs where no later start looks."""
    if not any(folder.glob("runs/*/log.jsonl")):
        return None
    number, kept = 2, folder / "stopped"
    while kept.exists():
        kept, number = folder / f"stopped-{number}", number + 1
    (folder / "runs").rename(kept)
    return kept


def _trained(plan: Plan, folder: Path, crew: Crew, clock: Clock, show: Screen) -> Plan:
    """Do the runs, and return the plan with the epochs they had."""
    pair = crew.pair
    steps = len(pair.train) // plan.recipe.data.batch_size

    def jobs(plan: Plan) -> list[Job]:
        resume = (folder / "runs").exists()
        return [Job(f"{v.name}, seed {s}", r, _place(folder, v, s), resume) for v, s, r in plan.runs()]

    rounds = Rounds(folder, crew, clock, steps, show)
    if clock.budget is not None:
        earlier = begun(plan, folder)
        plan = rounds.fit(earlier or plan, fixed=earlier is not None)
    images = facts(pair)
    _same_plan(plan, images, folder)
    try:
        if clock.budget is not None:
            return rounds.run(plan, jobs, lambda changed: _keep_plan(changed, images, folder))
        at_a_stretch(jobs(plan), crew, plan.recipe.epochs * steps, "top1", show)
        return plan
    finally:
        note_progress(folder, clock, progressed(folder)[1])


def _closing(figures: dict[str, Figures]) -> float:
    """Tell the seconds that attention maps and the report will take."""
    return 2.0 + sum(0.03 * each.latency_ms for each in figures.values())


def begun(plan: Plan, folder: Path) -> Plan | None:
    """Give a plan the length its folder was begun with, since a budget would not be measured the same again."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    kept: dict[str, Any] = json.loads(path.read_text())
    optim = replace(plan.recipe.optim, warmup_epochs=kept["recipe"]["optim"]["warmup_epochs"])
    recipe = replace(plan.recipe, epochs=kept["recipe"]["epochs"], optim=optim)
    return replace(plan, recipe=recipe, planned=kept.get("planned"), stopped=kept.get("stopped", False))


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


def _model(plan: Plan, variant: Variant, pair: Pair) -> nn.Module:
    torch.manual_seed(0)
    model = build(replace(plan.recipe, mechanisms=variant.mechanisms), pair)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _tell_of_few_patches(models: dict[str, nn.Module], show: Screen) -> None:
    """Warn where a kernel sees the whole image: asked of the models themselves, which have just seen one."""
    cells = [part.cell for model in models.values() for part in model.modules() if isinstance(part, OnLattice)]
    if not cells:
        return
    lattice = cells[0].read()
    if min(lattice.height, lattice.width) < FEW:
        show.note(few_patches(lattice.height, lattice.width))


def _is_tiny(models: dict[str, nn.Module], plan: Plan, pair: Pair) -> bool:
    """Tell whether one step is so little work that one core does it best, and the images fit into each worker."""
    if torch.cuda.is_available() or not isinstance(pair.train, MemoryImages):
        return False
    most = max(cost(model, image_size(plan.recipe)).gmacs for model in models.values())
    return plan.recipe.data.batch_size * most < 1 and pair.train.pixels.numel() < 2**28


def _figures(model: nn.Module, plan: Plan, pair: Pair) -> Figures:
    channels = pair.train.pixels.shape[1] if isinstance(pair.train, MemoryImages) else 3
    return measure(model, image_size(plan.recipe), channels, plan.recipe.data.batch_size)


def _same_plan(plan: Plan, images: dict[str, int], folder: Path) -> None:
    """Leave the plan in the folder, so that a resume with another plan, or with other images, is noticed."""
    path = folder / "plan.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        refuse_others(folder, kept.pop("images", None), images)
        if changed := differences(kept, _written(plan)):
            raise GlocalError(
                f"{folder} was begun with other settings: {'; '.join(changed[:3])}. "
                f"Repeat its own command, or choose another folder."
            )
    _keep_plan(plan, images, folder)


def _keep_plan(plan: Plan, images: dict[str, int], folder: Path) -> None:
    checkpoint.write_json(folder / "plan.json", _written(plan) | {"images": images})


def _written(plan: Plan) -> dict[str, Any]:
    kept = {"recipe": plain(plan.recipe), "seeds": plan.seeds, "variants": [v.name for v in plan.variants]}
    return json.loads(json.dumps(kept | {"planned": plan.planned, "stopped": plan.stopped}))


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
        "budget_seconds": comparison.budget,
        "planned_epochs": comparison.plan.planned or comparison.plan.recipe.epochs,
        "recipe": plain(comparison.plan.recipe),
        "classes": list(comparison.classes),
        "images": {"train": comparison.images[0], "validation": comparison.images[1]},
        "figures": {name: asdict(each) for name, each in comparison.figures.items()},
        "runs": [asdict(each) for each in comparison.results],
    }
