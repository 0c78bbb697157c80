"""What the page does, without the page: opens models, reads an image, answers with pictures and words."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

from glocal.errors import GlocalError, nearest
from glocal.explain.asked import ask_for
from glocal.explain.draw import GREEN, overlay
from glocal.explain.methods import Ask, density, gradient_map, head_maps, layers_of, rollout_map
from glocal.explain.picture import read_picture
from glocal.explain.subject import Subject, open_subject
from glocal.measure.cost import cost
from glocal.recipes.reopen import reopen

SIDE = 448  # pixels of a picture on the page
KEPT = 4  # models in memory
METHODS = ("rollout", "gradient", "heads")
Place = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One model's answer."""

    title: str
    picture: Image.Image
    predictions: dict[str, float]
    cost: str


@dataclass(frozen=True)
class Question:
    """What was chosen on the page."""

    models: Sequence[str]
    image: Path
    method: str = "rollout"
    layer: int | None = None
    head: int | None = None
    fusion: str = "mean"
    place: Place | None = None


@dataclass
class Desk:
    """Answers questions, one at a time; it serves the models and runs it was given, and names of timm's if it may."""

    served: Mapping[str, str]
    names: bool = True
    pretrained: bool = False
    _open: OrderedDict[str, tuple[Subject, str]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, question: Question) -> list[Panel]:
        """Look at the image with each model, on one scale."""
        if question.method not in METHODS:
            raise GlocalError(f"unknown method {question.method!r}.{nearest(question.method, METHODS)}")
        picture = read_picture(question.image)
        place = None if question.place is None else f"{question.place[0]},{question.place[1]}"
        ask = ask_for(question.fusion, 0.0, question.layer, question.head, place)
        with self._lock:  # watching puts hooks on models that other visitors share
            opened = [self.open(name) for name in question.models if name.strip()]
            if not opened:
                raise GlocalError("no model is chosen. Choose one, or write the name of a timm model.")
            tensors = [subject.tensor(picture) for subject, _ in opened]
            maps = [look(question.method, subject, x, ask) for (subject, _), x in zip(opened, tensors, strict=True)]
            predicted = [dict(subject.predict(x)) for (subject, _), x in zip(opened, tensors, strict=True)]
        low, high = min(float(m.min()) for m in maps), max(float(m.max()) for m in maps)
        return [
            Panel(_title(s), _view(s, picture, patch_map, low, high, ask.place), guess, told)
            for (s, told), patch_map, guess in zip(opened, maps, predicted, strict=True)
        ]

    def layers(self, name: str) -> int:
        """Count a model's layers."""
        with self._lock:
            return layers_of(self.open(name)[0])

    def open(self, name: str) -> tuple[Subject, str]:
        """Open a model that is served, or a timm name with a variant after a plus sign; recent ones stay open."""
        name = name.strip()
        if name not in self._open:
            subject = self._fetch(name)
            counted = cost(subject.model, subject.size)
            self._open[name] = (subject, f"{counted.params / 1e6:.2f} M parameters, {counted.gmacs:.2f} GMACs")
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name]

    def _fetch(self, name: str) -> Subject:
        if name in self.served:
            return open_subject(self.served[name], pretrained=self.pretrained, reopen=reopen)
        bare, _, variant = name.partition("+")
        # A visitor may name models, never places: no path, no hub.
        if not self.names or any(mark in name for mark in "/\\:~") or Path(bare.strip()).suffix == ".safetensors":
            listed = ", ".join(self.served) or "none"
            raise GlocalError(f"{name!r} is not served here.{nearest(name, self.served)} Served: {listed}.")
        return _named(bare.strip(), variant.strip() or None, self.pretrained)


def look(method: str, subject: Subject, image: Tensor, ask: Ask) -> Tensor:
    """Make one model's map."""
    if method == "heads":
        return density(head_maps(subject, image, ask).mean(dim=0))
    return (gradient_map if method == "gradient" else rollout_map)(subject, image, ask)


def served(models: Sequence[str], runs: Path | None) -> dict[str, str]:
    """Name what is served: the models given, and every finished run in a folder."""
    found = {_called(text): text for text in models}
    if runs is not None:
        if not runs.is_dir():
            raise GlocalError(f"{runs} is not a folder. Give the folder that holds the runs of `glocal train`.")
        folders = sorted(file.parent for file in runs.glob("**/model.safetensors"))
        found |= {str(each.resolve().relative_to(runs.resolve().parent)): str(each) for each in folders}
    return found


def _called(text: str) -> str:
    path = Path(text)
    return path.stem if path.is_file() else path.resolve().name if path.is_dir() else text


def _named(name: str, variant: str | None, pretrained: bool) -> Subject:
    if Path(name).exists():  # a file that happens to have a name like this is a place all the same
        raise GlocalError(f"{name!r} is not served here. Write the name of a timm model.")
    return open_subject(name, variant=variant, pretrained=pretrained)


def _title(subject: Subject) -> str:
    return f"{subject.name} ({subject.note})" if subject.note else subject.name


def _view(
    subject: Subject, picture: Image.Image, patch_map: Tensor, low: float, high: float, place: Place | None
) -> Image.Image:
    height, width = subject.size
    factor = SIDE / max(height, width)
    view = subject.crop(picture).resize((round(width * factor), round(height * factor)), Image.Resampling.BICUBIC)
    shown = overlay(view, patch_map, low, high)
    if place is not None:
        _frame(shown, tuple(patch_map.shape), place)
    return shown


def _frame(shown: Image.Image, lattice: tuple[int, ...], place: Place) -> None:
    down, across = shown.height / lattice[0], shown.width / lattice[1]
    row, column = min(int(place[0] * lattice[0]), lattice[0] - 1), min(int(place[1] * lattice[1]), lattice[1] - 1)
    corners = (column * across, row * down, (column + 1) * across, (row + 1) * down)
    ImageDraw.Draw(shown).rectangle(corners, outline=GREEN, width=3)
