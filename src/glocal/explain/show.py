"""Pictures and arrays of one method, for some models and some images, into a folder."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from glocal.errors import GlocalError, nearest
from glocal.explain import draw, profiles
from glocal.explain.entropy import EntropyProfile
from glocal.explain.methods import Ask, belonging, dense_maps, gradient_map, head_maps, rollout_map
from glocal.explain.offsets import merges_of, sampling_points
from glocal.explain.scales import scale_profile
from glocal.explain.subject import Subject

DENSITY = "times a uniform look"


@dataclass(frozen=True)
class Picture:
    """An image and what to call it."""

    name: str
    image: Image.Image


@dataclass(frozen=True)
class Shown:
    """One figure and the arrays behind it."""

    name: str
    figure: Figure
    arrays: Mapping[str, Tensor]


Method = Callable[[Sequence[Subject], Sequence[Picture], Ask], list[Shown]]


def show(method: str, subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask, folder: Path) -> list[Path]:
    """Write a method's figures as PNG and its arrays as NPZ; nothing half-written stays behind."""
    return [path for shown in make(method, subjects, pictures, ask) for path in write(shown, folder)]


def make(method: str, subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    """Make a method's figures."""
    if method not in METHODS:
        raise GlocalError(f"unknown method {method!r}.{nearest(method, METHODS)} There are: {', '.join(METHODS)}.")
    if not pictures:
        raise GlocalError("no image was given. Name at least one.")
    return METHODS[method](_apart(subjects), pictures, ask)


def write(shown: Shown, folder: Path) -> list[Path]:
    """Write one figure and its arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    png, npz = io.BytesIO(), io.BytesIO()
    shown.figure.savefig(png, format="png")
    np.savez_compressed(npz, allow_pickle=False, **{key: value.cpu().numpy() for key, value in shown.arrays.items()})
    written: list[Path] = []
    for suffix, data in (("png", png), ("npz", npz)):
        path = folder / f"{_tidy(shown.name)}.{suffix}"
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_bytes(data.getvalue())
        part.replace(path)
        written.append(path)
    return written


def _maps(name: str, compute: Callable[[Subject, Tensor, Ask], Tensor]) -> Method:
    def method(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
        rows, arrays = [], {}
        for picture in pictures:
            maps = {each.name: compute(each, each.tensor(picture.image), ask) for each in subjects}
            notes = {each.name: _caption(each, picture) for each in subjects}
            arrays |= {f"{picture.name}/{key}": value for key, value in maps.items()}
            rows.append(draw.Row(subjects[0].crop(picture.image), picture.name, maps, notes))
        return [Shown(name, draw.side_by_side(rows, DENSITY), arrays)]

    return method


def _heads(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    shown = []
    for picture in pictures:
        maps = {each.name: head_maps(each, each.tensor(picture.image), ask) for each in subjects}
        figure = draw.head_grid(subjects[0].crop(picture.image), maps, ask.threshold)
        shown.append(Shown(f"heads-{picture.name}", figure, maps))
    return shown


def _query(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    place, shown = ask.place or (0.5, 0.5), []
    for each in subjects:
        blocks = profiles.query_maps(each, [each.tensor(picture.image) for picture in pictures], place)
        arrays = {f"layer{layer}": maps for layer, maps in blocks.items()}
        shown.append(Shown(f"query-{each.name}", draw.query_grid(blocks, place, each.name), arrays))
    return shown


def _entropy(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    found = {each.name: profiles.entropies(each, _tensors(each, pictures)) for each in subjects}
    parts = {
        "mean": {name: profile.mean for name, profile in found.items()},
        "15th percentile": {name: profile.low for name, profile in found.items()},
        # Models without one stay in, as nan, or the others would change their colours.
        "class token": {name: profile.class_token for name, profile in found.items()},
    }
    if all(profile.class_token.isnan().all() for profile in found.values()):
        del parts["class token"]
    bounds = {f"maximum, {name}": profile.maximum for name, profile in _different(found).items()}
    arrays = {f"{name}/{key}": value for name, profile in found.items() for key, value in vars(profile).items()}
    return [Shown("entropy", draw.panels(parts, "entropy (nats)", bounds), arrays)]


def _distance(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    found = {each.name: profiles.distances(each, _tensors(each, pictures)) for each in subjects}
    parts = {
        "mean over pairs (the paper)": {name: pairs for name, (pairs, _) in found.items()},
        "mean over tokens": {name: tokens for name, (_, tokens) in found.items()},
    }
    arrays = {
        f"{name}/{key}": v for name, both in found.items() for key, v in zip(("pairs", "tokens"), both, strict=True)
    }
    return [Shown("distance", draw.panels(parts, "$a_{ij}\\,|p_i-p_j|_1$", one_scale=False), arrays)]


def _scales(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    found = {each.name: scale_profile(each.model) for each in subjects if _has_scales(each)}
    if not found:
        scale_profile(subjects[0].model)  # says why there is nothing to show
    parts = {
        "mean weight": {name: profile.mean for name, profile in found.items()},
        "10 % / 90 % quantile": {name: profile.ratio for name, profile in found.items()},
    }
    arrays = {
        f"{name}/{key}": getattr(profile, key)
        for name, profile in found.items()
        for key in ("mean", "magnitude", "ratio")
    }
    return [Shown("scales", draw.panels(parts, "CB_S scaling weights"), arrays)]


def _offsets(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    shown = []
    for picture in pictures:
        points, token, size = {}, (0, 0), (1, 1)
        for each in subjects:
            image = each.tensor(picture.image)
            height, width = merges_of(each.model, image)[-1].offset.shape[-2:]
            down, across = ask.place or (0.5, 0.5)
            size, token = (height, width), (min(int(down * height), height - 1), min(int(across * width), width - 1))
            points[each.name] = sampling_points(each.model, image, token)[0]
        figure = draw.dots(subjects[0].crop(picture.image), points, token, size)
        shown.append(Shown(f"offsets-{picture.name}", figure, points))
    return shown


def _dense(subjects: Sequence[Subject], pictures: Sequence[Picture], ask: Ask) -> list[Shown]:
    if len(pictures) > 1:
        raise GlocalError(f"dense roll-out takes one image with its labels or boxes; {len(pictures)} were given.")
    picture = pictures[0]
    found = {each.name: dense_maps(each, picture.image, ask) for each in subjects}
    titles = list(dict.fromkeys(title for maps in found.values() for title in maps))
    drawn = [_belongs(each, picture, ask) for each in subjects]
    arrays = {f"{name}/{key}": value for name, maps in found.items() for key, value in maps.items()}
    figure = draw.dense_grid(subjects[0].crop(picture.image), found, titles, drawn)
    return [Shown(f"dense-{picture.name}", figure, arrays)]


def _belongs(subject: Subject, picture: Picture, ask: Ask) -> Image.Image:
    """Draw the labels or boxes that a model's maps were made from."""
    labels, boxes = belonging(subject, picture.image, subject.tensor(picture.image), ask)
    if labels is not None:
        return draw.coloured(labels)
    return draw.framed(subject.crop(picture.image), boxes)


METHODS: dict[str, Method] = {
    "rollout": _maps("rollout", rollout_map),
    "gradient": _maps("gradient", gradient_map),
    "heads": _heads,
    "query": _query,
    "entropy": _entropy,
    "distance": _distance,
    "scales": _scales,
    "offsets": _offsets,
    "dense": _dense,
}


def _different(found: Mapping[str, EntropyProfile]) -> dict[str, EntropyProfile]:
    """Keep one of each maximum: models of one lattice share it."""
    kept: dict[str, EntropyProfile] = {}
    for name, profile in found.items():
        if not any(_same(profile.maximum, each.maximum) for each in kept.values()):
            kept[name] = profile
    return kept


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)


def _tensors(subject: Subject, pictures: Sequence[Picture]) -> list[Tensor]:
    return [subject.tensor(picture.image) for picture in pictures]


def _has_scales(subject: Subject) -> bool:
    try:
        scale_profile(subject.model)
    except GlocalError:
        return False
    return True


def _caption(subject: Subject, picture: Picture) -> str:
    best = subject.predict(subject.tensor(picture.image), 1)
    told = f"{best[0][0]}, {best[0][1]:.1%}" if best else ""
    return subject.note or told  # what random weights predict means nothing


def _apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Give models of one name numbers, so that none hides another."""
    from dataclasses import replace

    names = [each.name for each in subjects]
    return [
        replace(each, name=f"{each.name} ({names[: i + 1].count(each.name)})") if names.count(each.name) > 1 else each
        for i, each in enumerate(subjects)
    ]


def _tidy(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "_", name).strip("_.") or "picture"
