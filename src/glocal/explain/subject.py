"""What is looked into: a model by name, by file or by run folder, and how it likes its images."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional as T

from glocal.errors import GlocalError
from glocal.explain.picture import crop
from glocal.mechanisms import named
from glocal.store import load
from glocal.zoo import check_name, create_model

_MODEL = "model.safetensors"
Reopen = Callable[[Path], nn.Module]


@dataclass(frozen=True)
class Subject:
    """A model ready to be looked into."""

    name: str
    model: nn.Module
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    note: str = ""
    """What a reader of its pictures must know, such as that its weights are random."""

    def crop(self, picture: Image.Image) -> Image.Image:
        """Bring a picture to the model's size: the shorter side first, then the middle."""
        return crop(picture, self.size)

    def tensor(self, picture: Image.Image) -> Tensor:
        """Turn a picture into what the model takes: (1, C, H, W)."""
        channels = len(self.mean)
        if channels not in (1, 3):
            raise GlocalError(f"{self.name} takes images of {channels} channels; pictures have 1 (grey) or 3 (colour).")
        image = self.crop(picture).convert("L" if channels == 1 else "RGB")
        return T.normalize(T.to_tensor(image), list(self.mean), list(self.std))[None]

    def predict(self, image: Tensor, count: int = 5) -> list[tuple[str, float]]:
        """Name the likeliest classes with their confidence."""
        with torch.no_grad():
            scores = self.model(image)
        if not isinstance(scores, Tensor) or scores.ndim != 2:
            return []
        confidence, index = scores[0].softmax(dim=-1).topk(min(count, scores.shape[-1]))
        return [(self.label(int(i)), float(c)) for c, i in zip(confidence, index, strict=True)]

    def label(self, index: int) -> str:
        """Name a class, by its number where it has no name."""
        return self.classes[index] if index < len(self.classes) else f"class {index}"


def subjects(
    model: str, variants: list[str] | None = None, compare: list[str] | None = None, **how: Any
) -> list[Subject]:
    """Open the model, its variants, and the models to compare it with, in that order."""
    opened = [open_subject(model, **how)]
    opened += [open_subject(model, variant=variant, **how) for variant in variants or []]
    return opened + [open_subject(each, **how) for each in compare or []]


def open_subject(
    text: str, *, variant: str | None = None, pretrained: bool = False, seed: int = 0, reopen: Reopen = load
) -> Subject:
    """Open a timm name (with a variant such as `life+cb`), a file that `glocal.save` wrote, or a run folder.

    `reopen` rebuilds the model of a run from its file; those who know recipes pass one that knows heads too.
    """
    path = Path(text)
    if path.is_dir():
        return _run(path, variant, reopen)
    if path.is_file():
        _no_variant(text, variant)
        return _subject(path.stem, load(path))
    if path.suffix == ".safetensors" or ("/" in text and ":" not in text):
        raise GlocalError(
            f"{text} is neither a file nor a run folder. Give one that is there, or the name of a timm model."
        )
    check_name(text)
    mechanisms = named(variant) if variant else ()
    torch.manual_seed(seed)
    try:
        model = create_model(text, *mechanisms, pretrained=pretrained, preserve=False)
    except (RuntimeError, OSError) as error:
        if not pretrained:
            raise
        raise GlocalError(f"the weights of {text} could not be had ({str(error).splitlines()[0]}).") from None
    note = "" if pretrained and not variant else "random weights" if not pretrained else f"{variant}: not trained"
    return _subject(f"{text} + {variant}" if variant else text, model, note=note)


def _run(folder: Path, variant: str | None, reopen: Reopen) -> Subject:
    _no_variant(str(folder), variant)
    file = folder / _MODEL
    if not file.is_file():
        raise GlocalError(f"{folder} holds no {_MODEL}. Give the folder of a finished run of `glocal train`.")
    metrics = _read(folder / "metrics.json", json.loads)
    recipe = _read(folder / "recipe.yaml", yaml.safe_load)
    known: dict[str, Any] = {key: tuple(metrics[key]) for key in ("mean", "std", "classes") if metrics.get(key)}
    size = (recipe.get("data") or {}).get("size") if isinstance(recipe.get("data"), dict) else None
    return _subject(folder.resolve().name, reopen(file), size=size, **known)


def _read(path: Path, parse: Any) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = parse(path.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise GlocalError(f"{path} cannot be read ({str(error).splitlines()[0]}). Was the run cut short?") from None
    return found if isinstance(found, dict) else {}


def _no_variant(text: str, variant: str | None) -> None:
    if variant:
        raise GlocalError(
            f"{text} is trained already; --with {variant} would graft weights that are not. Compare runs instead."
        )


def _subject(
    name: str,
    model: nn.Module,
    *,
    size: Any = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    classes: tuple[str, ...] = (),
    note: str = "",
) -> Subject:
    config: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    arguments = getattr(getattr(model, "glocal", None), "arguments", {})
    built: Any = next((each.img_size for each in model.modules() if getattr(each, "img_size", None)), None)
    size = size or arguments.get("img_size") or built or tuple(config.get("input_size") or (3, 224, 224))[-2:]
    channels = int(arguments.get("in_chans") or 3)
    mean = mean or _of(config.get("mean"), channels, 0.5)
    std = std or _of(config.get("std"), channels, 0.5)
    height, width = (size, size) if isinstance(size, int) else size
    return Subject(name, model.eval(), (int(height), int(width)), mean, std, tuple(map(str, classes)), note)


def _of(values: Any, channels: int, usual: float) -> tuple[float, ...]:
    values = tuple(values or ())
    return values if len(values) == channels else (usual,) * channels
