"""A time budget turned into epochs, the same for every variant."""

from __future__ import annotations

import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from glocal.compare.plan import Plan, with_epochs
from glocal.data.images import Pair
from glocal.data.sources import in_memory
from glocal.errors import GlocalError
from glocal.recipes.run import accelerate, image_size, prepare
from glocal.train.screen import Silent
from glocal.train.settings import Recipe

_UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> float:
    """Read a duration: 90s, 10m, 2h, 1h30m."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    if not parts or "".join(a + b for a, b in parts) != text.strip():
        raise GlocalError(f"budget {text!r} is not understood. Write 90s, 10m, 2h or 1h30m.")
    return sum(float(count) * _UNITS[unit] for count, unit in parts)


def fit_budget(plan: Plan, pair: Pair, budget: str) -> Plan:
    """Set the plan's epochs so that all its runs fit into a time."""
    allowed = seconds(budget)
    held = in_memory(pair, plan.recipe.data, image_size(plan.recipe))
    return replace(plan, recipe=with_epochs(plan.recipe, epochs_within(plan, held, allowed)))


def epochs_within(plan: Plan, pair: Pair, budget: float) -> int:
    """Time a few steps of each variant and tell how many epochs of all runs fit; never less than one."""
    per_epoch = 0.0
    for _, seed, recipe in plan.runs():
        if seed == plan.seeds[0]:
            per_epoch += len(plan.seeds) * _epoch_seconds(recipe, pair)
    return max(1, min(300, int(0.85 * budget / per_epoch)))  # the rest is for starting up and measuring


def _epoch_seconds(recipe: Recipe, pair: Pair) -> float:
    with tempfile.TemporaryDirectory() as folder:
        loop = prepare(recipe, pair, accelerate(recipe, Path(folder)), Path(folder), Silent())
        times: list[float] = []
        for _, parts in zip(range(4), loop.task.batches(0, 0), strict=False):
            began = time.perf_counter()
            loop._update(0, parts)
            float(loop.running)
            times.append(time.perf_counter() - began)
        step = median(times[1:] or times)  # the first one warms up
        evaluation = len(pair.val) / recipe.data.batch_size * step / 3  # a forward pass is a third of a step
        return loop.task.steps * step + evaluation
