"""Use what a run left behind: evaluate it, or ask it about images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glocal.data.feed import evaluation_transform
from glocal.data.images import (
    IMAGENET,
    UNREADABLE,
    eight_bit,
    image_suffixes,
    upright,
)
from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from glocal.recipes.schema import read
from glocal.store import load as load_model
from glocal.store import read_recipe

_MEND = "Restore it from a copy, or let `glocal train … --resume` write it again."


@dataclass(frozen=True)
class Trained:
    """A model with what it needs to look at images."""

    model: nn.Module
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    data: DataSettings
    named: bool = False
    """Whether the run recorded its classes' names; else they are numbers."""
    run: bool = True
    """Whether a run tells how it saw its images; else they are shown as timm shows them to its host."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def notes(self) -> tuple[str, ...]:
        """Tell how images are shown where nobody knows how the model learned them."""
        if self.run:
            return ()
        mean, std = (", ".join(f"{each:g}" for each in values) for values in (self.mean, self.std))
        told = f"{self.size[0]}x{self.size[1]} pixels, mean {mean}, std {std}"
        crop = f", the middle {100 * self.data.crop_pct:g} %" if self.data.crop_pct else ""
        return (f"no run tells how the model saw its images; they are shown as timm has it for its host: {told}{crop}",)


def open_trained(path: str) -> Trained:
    """Open a run folder, or a saved model with or without its folder."""
    place = Path(path)
    file = place / "model.safetensors" if place.is_dir() else place
    if place.is_dir() and not file.exists():
        begun = (place / "checkpoints").exists()
        advice = "Finish it with `glocal train … --resume`." if begun else "It is no run folder."
        raise GlocalError(f"{place} holds no model.safetensors. {advice}")
    model = load_model(file)
    facts = facts_of(file)
    recipe = file.parent / "recipe.yaml"
    if not facts and not recipe.exists():
        return without_run(model)
    data = read(recipe).data if recipe.exists() else DataSettings(name="")
    count: int = getattr(model, "num_classes", 1000)
    classes = tuple(facts.get("classes") or map(str, range(count)))
    mean, std = (tuple(facts.get(key) or usual) for key, usual in zip(("mean", "std"), _usual(model), strict=True))
    return Trained(_placed(model), classes, mean, std, _size(model, data), data, bool(facts.get("classes")))


def without_run(model: nn.Module) -> Trained:
    """Take a model that no run tells about; images are brought before it as timm brings them before its host."""
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    usual = _usual(model)
    mean, std = (tuple(config.get(key) or ()) for key in ("mean", "std"))
    mean, std = (mean, std) if len(mean) == len(std) == len(usual[0]) else usual
    data = DataSettings(name="", crop_pct=config.get("crop_pct"), memory="no")
    classes = tuple(map(str, range(getattr(model, "num_classes", 1000))))
    return Trained(_placed(model), classes, mean, std, _size(model, data), data, run=False)


def _placed(model: nn.Module) -> nn.Module:
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def run_folder(path: str) -> Path:
    """Give a run's folder, of which its model may be named too."""
    place = Path(path)
    return place.parent if place.is_file() and place.suffix == ".safetensors" else place


def facts_of(file: Path) -> dict[str, Any]:
    """Read what is known of a saved model: the figures of its run, or what the file says itself."""
    figures = file.with_name("metrics.json")
    if not figures.exists():
        return read_recipe(file).get("facts", {})
    try:
        facts = json.loads(figures.read_text())
    except ValueError as error:
        raise GlocalError(f"{figures} is damaged ({error}). {_MEND}") from None
    if not isinstance(facts, dict):
        raise GlocalError(f"{figures} holds a {type(facts).__name__}; wanted figures by name. {_MEND}")
    return facts


def _usual(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    arguments: dict[str, Any] = getattr(getattr(model, "glocal", None), "arguments", {})
    mean, std = IMAGENET
    return ((sum(mean) / 3,), (sum(std) / 3,)) if arguments.get("in_chans") == 1 else (mean, std)


def predict(path: str, places: Sequence[Path], top: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Give each image's likeliest classes, and which images could not be read."""
    trained = open_trained(path)
    files = list(image_files(places))  # a place that is not there is told before anything is computed
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for file in files:
        try:
            image = _image(trained, file)
        except UNREADABLE as error:
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

    with Image.open(file) as opened:
        image = eight_bit(upright(opened), "L" if len(trained.mean) == 1 else "RGB")
    return evaluation_transform(trained.data, trained.size, trained.mean, trained.std)(image)


def image_files(places: Sequence[Path]) -> Iterator[Path]:
    """List images, those of folders too."""
    for place in places:
        if place.is_dir():
            found = sorted(each for each in place.rglob("*") if _is_image(each, place))
            if not found:
                raise GlocalError(f"{place} holds no images.")
            yield from found
        elif place.exists():
            yield place
        else:
            raise GlocalError(f"{place} does not exist.")


def _is_image(file: Path, place: Path) -> bool:
    """Tell whether a file in a folder is an image by name; hidden ones belong to the system."""
    hidden = any(part.startswith(".") for part in file.relative_to(place).parts)
    return file.suffix.lower() in image_suffixes() and not hidden and not file.is_dir()


def _size(model: nn.Module, data: DataSettings) -> tuple[int, int]:
    built: Any = next((m.img_size for m in model.modules() if getattr(m, "img_size", None) is not None), None)
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    size: Any = built or data.size or tuple(config.get("input_size", (3, 224, 224))[-2:])
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
