"""Use a trained detector or segmenter: evaluate it, ask it about images, draw what it finds."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from glocal.data.decode import read_pixels
from glocal.data.dense_transforms import evaluation
from glocal.data.images import UNREADABLE
from glocal.data.segmentation import read_labels
from glocal.errors import GlocalError
from glocal.heads.draw import draw_boxes, draw_labels, legend
from glocal.measure.robustness import Spoilt, robustness
from glocal.recipes.dense import DENSE, dense_size, dense_task, open_dense
from glocal.recipes.reopen import reopen
from glocal.recipes.schema import read, with_data
from glocal.recipes.trained import facts_of, run_folder
from glocal.train.checkpoint import write_bytes
from glocal.train.settings import Recipe
from glocal.train.tasks.detect import to_size
from glocal.train.tasks.segment import at_size, label_scores


@dataclass(frozen=True)
class TrainedDense:
    """A detector or segmenter with what it needs to look at images."""

    model: nn.Module
    recipe: Recipe
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def look(self, pixels: Tensor) -> dict[str, Tensor]:
        """Tell what is in a (3, H, W) image of bytes, at its own size.

        Gives boxes, scores, labels, and masks where the head finds them; or labels (H, W) and scores (classes, H, W).
        """
        size = (pixels.shape[-2], pixels.shape[-1])
        mean, std = (torch.tensor(each, device=self.device)[:, None, None] for each in (self.mean, self.std))
        changed = evaluation(self.recipe.data.dense, dense_size(self.recipe))(pixels)
        image = (changed.to(self.device).float() / 255 - mean) / std
        if self.recipe.task == "detect":
            return to_size(self.model([image])[0], image, size)
        window = dense_size(self.recipe) if self.recipe.data.dense.eval_fit == "slide" else None
        scores = at_size(label_scores(self.model, [image], window)[0], size)
        return {"labels": scores.argmax(0), "scores": scores}


def is_dense(path: str) -> bool:
    """Tell whether a run folder holds a detector or a segmenter."""
    recipe = run_folder(path) / "recipe.yaml"
    return recipe.is_file() and read(recipe).task in DENSE


def open_dense_run(path: str) -> TrainedDense:
    """Open the folder of a finished detection or segmentation run."""
    folder = run_folder(path)
    file = folder / "model.safetensors" if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise GlocalError(f"{folder} holds no model.safetensors. Finish it with `glocal train … --resume`.")
    model = reopen(file).to("cuda" if torch.cuda.is_available() else "cpu").eval()
    recipe = read(folder / "recipe.yaml")
    facts = facts_of(file)
    if missing := [name for name in ("classes", "mean", "std") if name not in facts]:
        raise GlocalError(f"{folder / 'metrics.json'} lacks {', '.join(missing)}. Finish the run with --resume.")
    return TrainedDense(model, recipe, tuple(facts["classes"]), tuple(facts["mean"]), tuple(facts["std"]))


def evaluate_dense(path: str, data: str | None = None, batch: int = 8) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure a run on its own validation images, or on others."""
    trained = open_dense_run(path)
    task, _ = validation(trained, data, batch)
    with torch.inference_mode():
        return task.evaluate(trained.model, lambda each: each), trained.classes


def validation(trained: TrainedDense, data: str | None, batch: int) -> tuple[Any, Recipe]:
    """Open the images to measure a run on."""
    recipe = replace(trained.recipe, data=replace(trained.recipe.data, workers=2, batch_size=1, eval_batch_size=batch))
    if data is not None:
        recipe = with_data(recipe, data)
    # Classes keep the numbers they were learned by.
    recipe = replace(recipe, data=replace(recipe.data, dense=replace(recipe.data.dense, classes=trained.classes)))
    pair = open_dense(recipe)
    accelerator = Accelerator(cpu=trained.device.type == "cpu")
    return dense_task(replace(recipe, accumulate=1), pair, accelerator, _tell, training=False), recipe


def robustness_dense(path: str, data: str | None = None, runs: int = 5) -> list[Spoilt]:
    """Measure a segmentation run on whole and spoilt validation images."""
    trained = open_dense_run(path)
    if trained.recipe.task != "segment":
        raise GlocalError(f"{path} is a detector; spoilt images are measured for segmenters.")
    images = validation(trained, data, 1)[0].feed.pair.val

    def samples() -> Iterator[tuple[Tensor, Tensor]]:
        for each in images.samples:
            yield read_pixels(each.image), read_labels(each, images)[0]

    return robustness(lambda pixels: trained.look(pixels)["labels"], samples, len(trained.classes), images.ignore, runs)


def _tell(text: str) -> None:
    print(text, file=sys.stderr)  # a table may be on its way to a file


def predict_dense(
    path: str, images: Sequence[Path], out: Path, least: float = 0.5
) -> tuple[list[dict[str, Any]], list[str]]:
    """Draw what a run finds in images, and list it; also say which images could not be read."""
    trained = open_dense_run(path)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for file, name in zip(images, _picture_names(images), strict=True):
        try:
            pixels = read_pixels(file)
        except UNREADABLE as error:
            broken.append(f"{file} cannot be read: {error}")
            continue
        found = trained.look(pixels)
        rows += list(_rows(trained, found, file, least))
        write_png(drawn(trained, pixels, found, least), out / name)
    return rows, broken


def _picture_names(images: Sequence[Path]) -> list[str]:
    """Name the pictures after their images, one for each: images of several folders may share a name."""
    taken: set[str] = set()
    names: list[str] = []
    for file in images:
        number, stem = 2, file.stem
        while stem.casefold() in taken:
            stem, number = f"{file.stem}-{number}", number + 1
        taken.add(stem.casefold())
        names.append(f"{stem}.png")
    return names


def drawn(trained: TrainedDense, pixels: Tensor, found: dict[str, Tensor], least: float = 0.5) -> Tensor:
    """Draw boxes, or classes with their names beside, over an image."""
    if trained.recipe.task == "detect":
        return draw_boxes(pixels, found, trained.classes, least)
    picture = draw_labels(pixels, found["labels"], trained.classes)
    names = legend(trained.classes, found["labels"].unique().tolist(), picture.shape[1])
    picture = nn.functional.pad(picture, (0, 0, 0, names.shape[1] - picture.shape[1]), value=255)
    return torch.cat((picture, names), dim=2)


def write_png(picture: Tensor, path: Path) -> None:
    """Write (3, H, W) bytes as a picture."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).cpu().numpy()).save(buffer, "PNG")
    write_bytes(path, buffer.getbuffer())


def _rows(trained: TrainedDense, found: dict[str, Tensor], file: Path, least: float) -> Iterator[dict[str, Any]]:
    if trained.recipe.task == "segment":
        labels, counts = found["labels"].unique(return_counts=True)
        for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
            share = 100 * count / found["labels"].numel()
            yield {"image": str(file), "class": trained.classes[label], "percent": share}
        return
    listed = zip(found["boxes"].tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True)
    for box, label, score in listed:
        if score >= least:
            corners = " ".join(f"{each:.0f}" for each in box)
            yield {"image": str(file), "class": trained.classes[label], "percent": 100 * score, "box": corners}
