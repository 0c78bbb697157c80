"""Recipe in, run folder out."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from glocal.data.dense import DensePair
from glocal.data.facts import facts
from glocal.data.feed import FileFeed, feed
from glocal.data.images import Pair
from glocal.data.sources import in_memory, load
from glocal.errors import GlocalError
from glocal.recipes.answer import Asking, answer_task, build_answer, open_answer
from glocal.recipes.build import build, image_size, ordered, try_on, try_teacher
from glocal.recipes.dense import DENSE, built_dense, dense_task, open_dense
from glocal.recipes.dense_trial import try_on_dense
from glocal.recipes.lines import write
from glocal.recipes.vilt import keep_host
from glocal.store import save
from glocal.train import checkpoint
from glocal.train.loop import Loop
from glocal.train.part import Part
from glocal.train.screen import Screen, screen
from glocal.train.settings import Recipe
from glocal.train.tasks.classify import Classify
from glocal.train.tasks.distill import Teacher

TASKS = ("classify", *DENSE, "answer")
Data = Pair | DensePair | Asking


@dataclass(frozen=True)
class Outcome:
    """What a finished run leaves in memory."""

    model: nn.Module
    metrics: dict[str, Any]
    folder: Path
    main: bool = True
    """Whether this process is the one that speaks."""


def run(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    show: Screen | None = None,
    title: str = "",
    pair: Data | None = None,
    part: Part | None = None,
) -> Outcome:
    """Train as the recipe says; the folder gets the recipe, a log, checkpoints, metrics.json and model.safetensors.

    A part of a run goes on where the last one ended, and may shorten the recipe; only the last writes the results.
    """
    if recipe.task not in TASKS:
        raise GlocalError(f"task {recipe.task!r} is not known. There are: {', '.join(TASKS)}.")
    accelerator = accelerate(recipe, folder)
    show = show or screen(accelerator.is_main_process)
    if not accelerator.is_main_process:
        return _train(recipe, folder, accelerator, resume, show, title, pair, part)
    if recipe.length_warning:
        show.note(recipe.length_warning)
    with _alone_in(folder):
        _refuse_second(folder, resume)
        return _train(recipe, folder, accelerator, resume, show, title, pair, part)


def accelerate(recipe: Recipe, folder: Path) -> Accelerator:
    """Find the devices and processes, from the environment that `accelerate launch` or torchrun sets."""
    AcceleratorState._reset_state(reset_partial_state=False)  # an earlier run may have had another precision
    precision = "no" if recipe.precision == "fp32" else recipe.precision
    for tracker in recipe.trackers:
        if tracker != "tensorboard" and find_spec(tracker) is None:
            raise GlocalError(
                f"trackers asks for {tracker}, which is not installed. `pip install {tracker}`, or leave it out."
            )
    trackers: list[Any] = list(recipe.trackers)
    cpu = not torch.cuda.is_available()  # said aloud, or several processes on a processor do not find each other
    return Accelerator(cpu=cpu, mixed_precision=precision, log_with=trackers or None, project_dir=folder)


def seed(number: int) -> None:
    """Seed every generator, so that the same recipe starts from the same weights."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


def open_data(recipe: Recipe) -> Pair:
    """Open the recipe's images, in memory where that pays."""
    return in_memory(load(recipe.data, recipe.seed), recipe.data, image_size(recipe))


def prepare(recipe: Recipe, pair: Data, accelerator: Accelerator, folder: Path, show: Screen) -> Loop:
    """Put data, model, task and loop together."""
    if isinstance(pair, DensePair):
        return _prepare_dense(recipe, pair, accelerator, folder, show)
    if isinstance(pair, Asking):
        return _prepare_answer(recipe, pair, accelerator, folder, show)
    order = ordered(recipe, len(pair.train), accelerator)
    source = feed(pair.train, pair.val, recipe.data, order, accelerator.device, image_size(recipe))
    if isinstance(source, FileFeed):
        source.skipped.tell = show.note
    seed(recipe.seed)
    model = build(recipe, pair)
    try_on(model, recipe, pair)
    if recipe.sync_bn:
        model = _synchronised(model, accelerator)
    classes, images = len(pair.train.classes), pair.train
    teacher = None
    if recipe.distill is not None:
        teacher = Teacher.build(recipe.distill, classes, (images.mean, images.std), accelerator.device)
        try_teacher(teacher.model, recipe.distill.teacher, recipe, pair)
        if hasattr(model, "set_distilled_training"):
            model.set_distilled_training(True)  # pyright: ignore[reportCallIssue]
    task = Classify(recipe, source, classes, teacher)
    return Loop(recipe, model, task, folder, accelerator, show)


def _prepare_dense(recipe: Recipe, pair: DensePair, accelerator: Accelerator, folder: Path, show: Screen) -> Loop:
    seed(recipe.seed)
    model = built_dense(recipe, len(pair.train.classes))
    if recipe.sync_bn:
        model = _synchronised(model, accelerator)
    return Loop(recipe, model, dense_task(recipe, pair, accelerator, show.note), folder, accelerator, show)


def _prepare_answer(recipe: Recipe, asking: Asking, accelerator: Accelerator, folder: Path, show: Screen) -> Loop:
    seed(recipe.seed)
    model = build_answer(recipe, asking.host, asking.pair.train.classes)
    task = answer_task(recipe, asking.host, asking.pair, accelerator, show.note)
    return Loop(recipe, model, task, folder, accelerator, show)


def _train(
    recipe: Recipe,
    folder: Path,
    accelerator: Accelerator,
    resume: bool,
    show: Screen,
    title: str,
    pair: Data | None,
    part: Part | None,
) -> Outcome:
    if pair is None and recipe.task in DENSE:
        try_on_dense(recipe, accelerator.device)
    opened = pair or _opened(recipe)
    parts = opened.pair if isinstance(opened, Asking) else opened
    for note in parts.notes:
        show.note(note)
    loop = prepare(recipe, opened, accelerator, folder, show)
    loop.images = facts(parts)
    told = {key: list(getattr(parts.train, key)) for key in ("classes", "mean", "std")}
    loop.record["facts"] = told
    went_on = resume and _go_on(loop, folder, accelerator, show, part)
    if not went_on:
        loop.journal.clear()
    if accelerator.is_main_process and (part is not None or not went_on or not (folder / "recipe.yaml").exists()):
        checkpoint.write_bytes(folder / "recipe.yaml", write(recipe).encode())
    if accelerator.is_main_process and isinstance(opened, Asking):
        keep_host(opened.host, folder)
    if recipe.trackers:
        accelerator.init_trackers("tracking")
    figures = loop.run(title or folder.name, part)
    metrics = {"steps": loop.step, "seconds": round(loop.seconds, 3), "best": loop.best, **figures, **told}
    model = loop.whole()
    if accelerator.is_main_process and loop.step >= loop.total:
        save(model, folder / "model.safetensors", told)
        if loop.ema is not None:
            save(loop.ema.module, folder / "model_ema.safetensors", told)
        checkpoint.write_json(folder / "metrics.json", metrics)
    if recipe.trackers:
        accelerator.end_training()
    return Outcome(model, metrics, folder, accelerator.is_main_process)


def _opened(recipe: Recipe) -> Data:
    if recipe.task == "answer":
        return open_answer(recipe)
    return open_dense(recipe) if recipe.task in DENSE else open_data(recipe)


def _synchronised(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    if accelerator.num_processes > 1 and accelerator.device.type == "cpu":
        raise GlocalError("sync_bn needs GPUs; PyTorch's SyncBatchNorm does not run on the CPU. Leave it out.")
    return nn.SyncBatchNorm.convert_sync_batchnorm(model) if accelerator.num_processes > 1 else model


def _go_on(loop: Loop, folder: Path, accelerator: Accelerator, show: Screen, part: Part | None) -> bool:
    """Load the newest checkpoint; tell whether there was one."""
    last = folder / "checkpoints" / "last.pt"
    if accelerator.is_main_process:
        found = checkpoint.newest(last.parent)
        if found is not None and found != last:
            state = "cannot be read" if last.exists() else "is gone"
            show.note(f"{last} {state}: going on from {found.name}, the newest checkpoint that can be")
            checkpoint.write_bytes(last, found.read_bytes())
    accelerator.wait_for_everyone()
    if not last.exists():
        if (folder / "log.jsonl").exists():
            show.note(f"{folder} holds no checkpoint yet: starting from the beginning")
        return False
    loop.load(shortened=part is not None)
    if part is None:
        show.note(f"going on from step {loop.step} of {loop.total}")
    return True


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a run folder; a start that is refused takes away what it made, so that the mended command finds no trace."""
    fresh = not folder.exists()
    before = set[Path]() if fresh or not folder.is_dir() else set(folder.iterdir())
    with checkpoint.alone_in(folder):
        try:
            yield
        except (GlocalError, KeyboardInterrupt):
            made = set(folder.iterdir()) - before
            if not (folder / "log.jsonl").exists() and not _checkpoints(folder):
                for path in made:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                if fresh:
                    folder.rmdir()
            raise


def _refuse_second(folder: Path, resume: bool) -> None:
    results = [name for name in ("model.safetensors", "metrics.json") if (folder / name).exists()]
    if not resume and (results or _checkpoints(folder)):
        raise GlocalError(f"{folder} holds a run already. Continue it with --resume, or choose another folder with -o.")
    if results and not _checkpoints(folder):
        raise GlocalError(
            f"{folder} holds {' and '.join(results)}, but no checkpoint to go on from. Choose another folder with -o."
        )


def _checkpoints(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("*.pt"))
