"""Measure a trained classifier: as it is, on spoilt images, or where an image may have several labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from glocal.data.reassessed import padded, real_labels
from glocal.measure.accuracy import Tally
from glocal.measure.real import RealTally
from glocal.measure.spoil import Scale, Spoil
from glocal.recipes.exam import Tell, sit, sit_real
from glocal.recipes.trained import Trained, open_trained


def silent(text: str) -> None:
    """Hear a note and tell nobody."""


def evaluate(
    model: str | Trained, data: str | None, batch: int, tell: Tell = silent, *, all_classes: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure a trained model on its own validation images, or on others with its classes.

    Where an ImageNet-1k model is given images of some classes only, as in ImageNet-A, its answer is sought among
    these, unless `all_classes` are asked for. `tell` hears what is to be known of the images.
    """
    exam = sit(_opened(model), data, batch, tell, all_classes)
    tally = Tally(len(exam.classes), exam.trained.device)
    with torch.inference_mode():
        for images, labels in exam.batches():
            tally.add(exam.answer(images), labels)
    return tally.figures(), exam.classes


def evaluate_spoilt(
    model: str | Trained,
    data: str | None,
    batch: int,
    spoils: Sequence[Spoil],
    tell: Tell = silent,
    *,
    all_classes: bool = False,
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """Measure whole images, called clean, and the same images spoilt in each way; each file is read once."""
    exam = sit(_opened(model), data, batch, tell, all_classes)
    scale = Scale(exam.trained.mean, exam.trained.std)
    tallies = {name: Tally(len(exam.classes), exam.trained.device) for name in ("clean", *(s.name for s in spoils))}
    with torch.inference_mode():
        for images, labels in exam.batches():
            tallies["clean"].add(exam.answer(images), labels)
            for spoil in spoils:
                tallies[spoil.name].add(exam.answer(spoil(exam.answer, images, labels, scale)), labels)
    return {name: tally.figures() for name, tally in tallies.items()}, exam.classes


def evaluate_real(
    model: str | Trained, data: str | None, labels: str, batch: int, tell: Tell = silent
) -> dict[str, Any]:
    """Measure a model of ImageNet-1k by the reassessed labels of the validation images: a file of them, or `real`."""
    listed = real_labels(labels)
    exam = sit_real(_opened(model), data, listed, batch, tell)
    tally = RealTally(padded(listed).to(exam.trained.device))
    with torch.inference_mode():
        for images, places in exam.batches():
            tally.add(exam.answer(images), places)
    return tally.figures()


def _opened(model: str | Trained) -> Trained:
    return open_trained(model) if isinstance(model, str) else model
