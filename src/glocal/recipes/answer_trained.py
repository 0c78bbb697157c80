"""Use a model trained to answer questions: measure it, or ask it about images."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from glocal.data.images import UNREADABLE
from glocal.data.questions import QuestionPair
from glocal.data.sight import gather, normalised, see
from glocal.data.vqa import load_measured
from glocal.errors import GlocalError
from glocal.recipes.answer import answer_task
from glocal.recipes.schema import read, with_data
from glocal.recipes.trained import facts_of, image_files, run_folder
from glocal.recipes.vilt import KEPT, Opened, build_host, open_host
from glocal.store import load
from glocal.train.settings import HostSettings, Recipe
from glocal.train.tasks.answer import same_patches


@dataclass(frozen=True)
class TrainedAnswer:
    """A model with what it needs to answer questions."""

    model: nn.Module
    host: Opened
    recipe: Recipe
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def answers_questions(path: str) -> bool:
    """Tell whether a run folder holds a model that answers questions."""
    recipe = run_folder(path) / "recipe.yaml"
    return recipe.is_file() and read(recipe).task == "answer"


def open_answer_run(path: str) -> TrainedAnswer:
    """Open the folder of a finished run, or other weights in it."""
    folder = run_folder(path)
    file = folder / "model.safetensors" if Path(path).is_dir() else Path(path)
    if absent := [each.name for each in (file, folder / KEPT) if not each.exists()]:
        raise GlocalError(f"{folder} holds no {', no '.join(absent)}. Finish it with `glocal train … --resume`.")
    recipe, facts = read(folder / "recipe.yaml"), facts_of(file)
    if missing := [key for key in ("classes", "mean", "std") if key not in facts]:
        raise GlocalError(f"{folder / 'metrics.json'} lacks {', '.join(missing)}. Finish the run with --resume.")
    classes, mean, std = (tuple(facts[key]) for key in ("classes", "mean", "std"))
    host = open_host(HostSettings(str(folder / KEPT)))
    model = load(file, host=build_host(host, classes))
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return TrainedAnswer(model, host, recipe, classes, mean, std)


def evaluate_answers(path: str, data: str | None = None, batch: int = 32) -> dict[str, Any]:
    """Measure a run on its own validation questions, or on others."""
    trained = open_answer_run(path)
    settings = replace(trained.recipe.data, workers=2, batch_size=1, eval_batch_size=batch)
    recipe = replace(trained.recipe, data=settings, accumulate=1)
    if data is not None:
        recipe = with_data(recipe, data)
    measured, notes = load_measured(recipe.data, trained.classes, recipe.seed, whole=data is not None)
    for note in notes:
        _tell(note)
    pair = QuestionPair(measured, replace(measured, mean=trained.mean, std=trained.std))
    accelerator = Accelerator(cpu=trained.device.type == "cpu")
    task = answer_task(recipe, trained.host, pair, accelerator, _tell)
    with torch.inference_mode():
        return task.evaluate(trained.model, lambda each: each)


def ask(
    path: str, places: Sequence[Path], questions: Sequence[str], top: int = 3
) -> tuple[list[dict[str, Any]], list[str]]:
    """Give the likeliest answers to each question about each image, and which images could not be read."""
    if not questions:
        raise GlocalError(f"{path} answers questions about images. Ask one: --question 'What is on the table?'")
    trained = open_answer_run(path)
    sight = trained.host.sight(trained.recipe.data)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for file in image_files(places):
        try:
            image = sight(see(file))
        except UNREADABLE as error:
            broken.append(f"{file} cannot be read: {error}")
            continue
        words = [trained.host.words(each) for each in questions]
        inputs = {key: each.to(trained.device) for key, each in gather([image] * len(words), words).items()}
        with torch.inference_mode(), same_patches():
            chances = trained.model(**normalised(inputs, trained.mean, trained.std)).logits.float().sigmoid()
        for question, row in zip(questions, chances, strict=True):
            values, indices = row.topk(min(top, len(trained.classes)))
            for value, index in zip(values.tolist(), indices.tolist(), strict=True):
                answer = {"question": question, "answer": trained.classes[index], "percent": 100 * value}
                rows.append({"image": str(file), **answer})
    return rows, broken


def _tell(text: str) -> None:
    print(f"glocal: {text}", file=sys.stderr)  # a table may be on its way to a file
