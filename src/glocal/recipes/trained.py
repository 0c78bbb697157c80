"""Use what a run left behind: evaluate it, or ask it about images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glocal.data.decode import to_memory
from glocal.data.feed import FileFeed, evaluation_transform, feed
from glocal.data.images import (
    IMAGENET,
    UNREADABLE,
    Images,
    MemoryImages,
    Pair,
    StreamImages,
    eight_bit,
    few,
    image_suffixes,
    with_channels,
)
from glocal.data.order import Order
from glocal.data.settings import DataSettings
from glocal.data.sources import fits, load, load_measured, validation_part
from glocal.errors import GlocalError
from glocal.measure.accuracy import Tally
from glocal.recipes.schema import read
from glocal.store import load as load_model

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
    facts = facts_of(file.parent / "metrics.json")
    recipe = file.parent / "recipe.yaml"
    data = read(recipe).data if recipe.exists() else DataSettings()
    count: int = getattr(model, "num_classes", 1000)
    classes = tuple(facts.get("classes") or map(str, range(count)))
    mean, std = (tuple(facts.get(key) or usual) for key, usual in zip(("mean", "std"), _usual(model), strict=True))
    return Trained(model, classes, mean, std, _size(model, data), data, bool(facts.get("classes")))


def facts_of(file: Path) -> dict[str, Any]:
    """Read a run's figures; none where it has none."""
    if not file.exists():
        return {}
    try:
        facts = json.loads(file.read_text())
    except ValueError as error:
        raise GlocalError(f"{file} is damaged ({error}). {_MEND}") from None
    if not isinstance(facts, dict):
        raise GlocalError(f"{file} holds a {type(facts).__name__}; wanted figures by name. {_MEND}")
    return facts


def _usual(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    arguments: dict[str, Any] = getattr(getattr(model, "glocal", None), "arguments", {})
    mean, std = IMAGENET
    return ((sum(mean) / 3,), (sum(std) / 3,)) if arguments.get("in_chans") == 1 else (mean, std)


def evaluate(
    path: str, data: str | None, batch: int, tell: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Measure a trained model on its own validation images, or on others with the same classes.

    Others are measured as a whole where they have no validation part. `tell` hears what is to be known of the images.
    """
    trained = open_trained(path)
    name = trained.data.name if data is None else data
    settings = replace(trained.data, name=name, batch_size=batch, size=trained.size, workers=2)
    pair = load(settings) if data is None else load_measured(settings)
    _refuse_other_classes(trained, pair.val, settings.name)
    images, notes = _as_in_training(trained, pair, settings)
    for note in (*pair.notes, *_warnings(trained, data), *notes):
        tell(note)
    source = feed(images, images, settings, Order(len(images), 1), trained.device, trained.size)
    if isinstance(source, FileFeed):
        source.warn = tell
    tally = Tally(len(trained.classes), trained.device)
    with torch.inference_mode():
        for batch_images, labels in source.val():
            tally.add(trained.model(batch_images), labels)
    figures = tally.figures()
    if not figures["images"]:
        raise GlocalError(f"none of {len(images)} images of {settings.name} can be read. Are they whole?")
    return figures, trained.classes


def _refuse_other_classes(trained: Trained, images: Images, name: str) -> None:
    known, given = trained.classes, images.classes
    compared = trained.named and not isinstance(images, StreamImages)  # a stream cannot name its classes
    sides = {"the model": [c for c in known if c not in given], name: [c for c in given if c not in known]}
    differences = [f"only {who} has {few(names)}" for who, names in sides.items() if names]
    if compared and differences:
        raise GlocalError(
            f"{name} has other classes than the model: {'; '.join(differences)}. "
            f"Name its folders, or `classes` of an .npz, as they were in training."
        )
    if len(known) != len(given):
        raise GlocalError(f"the model knows {len(known)} classes, {name} has {len(given)}.")
    for number, (before, now) in enumerate(zip(known, given, strict=True)):
        if compared and before != now:
            raise GlocalError(
                f"{name} has the model's classes in another order: class {number} is {now}, in training it was "
                f"{before}. Number its labels as they were in training."
            )


def _as_in_training(trained: Trained, pair: Pair, settings: DataSettings) -> tuple[Images, tuple[str, ...]]:
    """Make images look as they did in training, wherever they come from: their statistics, grey or RGB, in memory."""
    channels = len(trained.mean)
    images = replace(pair.val, mean=trained.mean, std=trained.std)
    if isinstance(images, StreamImages) and channels != 3:
        raise GlocalError(f"the model takes grey images, {settings.name} is a stream of RGB. Give a folder or .npz.")
    if isinstance(images, MemoryImages):
        images = with_channels(images, channels)
    return to_memory(images, trained.size, settings.unreadable) if fits(pair, settings, trained.size) else (images, ())


def _warnings(trained: Trained, data: str | None) -> tuple[str, ...]:
    if data is None or not Path(data).exists() or Path(data).resolve() != Path(trained.data.name).resolve():
        return ()
    if validation_part(Path(data)) is not None:
        return ()
    return ("the model learned from most of these images; without --data only those held out are measured",)


def predict(path: str, places: Sequence[Path], top: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Give each image's likeliest classes, and which images could not be read."""
    trained = open_trained(path)
    rows: list[dict[str, Any]] = []
    broken: list[str] = []
    for file in image_files(places):
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
        image = eight_bit(opened, "L" if len(trained.mean) == 1 else "RGB")
    return evaluation_transform(trained.data, trained.size, trained.mean, trained.std)(image)


def image_files(places: Sequence[Path]) -> Iterator[Path]:
    """List images, those of folders too."""
    for place in places:
        if place.is_dir():
            found = sorted(each for each in place.rglob("*") if each.suffix.lower() in image_suffixes())
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
