"""Use what a run left behind: evaluate it, or ask it about images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glocal.data.feed import evaluation_transform, feed
from glocal.data.images import IMAGENET
from glocal.data.order import Order
from glocal.data.settings import DataSettings
from glocal.data.sources import in_memory, load
from glocal.errors import GlocalError
from glocal.measure.accuracy import Tally
from glocal.recipes.schema import read
from glocal.store import load as load_model


@dataclass(frozen=True)
class Trained:
    """A model with what it needs to look at images."""

    model: nn.Module
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    data: DataSettings

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def open_trained(path: str) -> Trained:
    """Open a run folder, or a saved model with or without its folder."""
    place = Path(path)
    file = place / "model.safetensors" if place.is_dir() else place
    if place.is_dir() and not file.exists():
        begun = (place / "checkpoints").exists()
        advice = "Finish it with `glocal train … --resume`." if begun else "It is no run folder."
        raise GlocalError(f"{place} holds no model.safetensors. {advice}")
    model = load_model(file).to("cuda" if torch.cuda.is_available() else "cpu")
    facts: dict[str, Any] = {}
    if (file.parent / "metrics.json").exists():
        facts = json.loads((file.parent / "metrics.json").read_text())
    recipe = file.parent / "recipe.yaml"
    data = read(recipe).data if recipe.exists() else DataSettings()
    count: int = getattr(model, "num_classes", 1000)
    classes = tuple(facts.get("classes") or map(str, range(count)))
    mean, std = (tuple(facts.get(key) or usual) for key, usual in zip(("mean", "std"), IMAGENET, strict=True))
    return Trained(model, classes, mean, std, _size(model, data), data)


def evaluate(path: str, data: str | None, batch: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure a trained model on its own validation images, or on others with the same classes."""
    trained = open_trained(path)
    settings = replace(trained.data, batch_size=batch, size=trained.size, workers=2)
    if data is not None:
        settings = replace(settings, name=data)
    pair = in_memory(load(settings), settings, trained.size)
    if len(pair.val.classes) != len(trained.classes):
        raise GlocalError(
            f"the model knows {len(trained.classes)} classes, {settings.name} has {len(pair.val.classes)}."
        )
    # The images must look as they did in training, wherever they come from.
    val = replace(pair.val, mean=trained.mean, std=trained.std)
    train = replace(pair.train, mean=trained.mean, std=trained.std)
    source = feed(train, val, settings, Order(len(val), 1), trained.device, trained.size)
    tally = Tally(len(trained.classes), trained.device)
    with torch.inference_mode():
        for images, labels in source.val():
            tally.add(trained.model(images), labels)
    return tally.figures(), trained.classes


def predict(path: str, places: Sequence[Path], top: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Give each image's likeliest classes, and which images could not be read."""
    trained = open_trained(path)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for file in image_files(places):
        try:
            image = _image(trained, file)
        except (OSError, SyntaxError, ValueError) as error:
            broken.append(f"{file} cannot be read: {error}")
            continue
        with torch.inference_mode():
            chances = trained.model(image[None].to(trained.device)).float().softmax(dim=1)[0]
        values, indices = chances.topk(min(top, len(trained.classes)))
        for value, index in zip(values.tolist(), indices.tolist(), strict=True):
            rows.append({"image": str(file), "class": trained.classes[index], "percent": 100 * value})
    return rows, broken


def _image(trained: Trained, file: Path) -> Tensor:
    from PIL import Image

    image = Image.open(file).convert("L" if len(trained.mean) == 1 else "RGB")
    return evaluation_transform(trained.data, trained.size, trained.mean, trained.std)(image)


def image_files(places: Sequence[Path]) -> Iterator[Path]:
    """List images, those of folders too."""
    from timm.data.readers.img_extensions import get_img_extensions

    for place in places:
        if place.is_dir():
            found = sorted(each for each in place.rglob("*") if each.suffix.lower() in get_img_extensions())
            if not found:
                raise GlocalError(f"{place} holds no images.")
            yield from found
        elif place.exists():
            yield place
        else:
            raise GlocalError(f"{place} does not exist.")


def _size(model: nn.Module, data: DataSettings) -> tuple[int, int]:
    built: Any = next((m.img_size for m in model.modules() if getattr(m, "img_size", None) is not None), None)
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    size: Any = built or data.size or tuple(config.get("input_size", (3, 224, 224))[-2:])
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
