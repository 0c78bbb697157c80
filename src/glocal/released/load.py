"""Recognise a released checkpoint, check every tensor, and only then build the model and fill it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError, nearest
from glocal.mechanisms import named
from glocal.released.catalogue import RELEASES, Release
from glocal.released.families import Family, Turn
from glocal.released.files import read_tensors
from glocal.zoo import create_model

# Not weights: shift masks, index and coordinate tables, BatchNorm's counters. They may be absent, and are rebuilt.
STRUCTURAL = ("attn_mask", "relative_position_index", "relative_coords_table", "num_batches_tracked")
_HEAD = tuple(f"{head}.{part}" for head in ("head", "head.fc", "head_dist") for part in ("weight", "bias"))
_OWN = Family()  # a checkpoint may have our names, which are timm's, too

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """One tensor of a release: its shape there, and which of ours it becomes."""

    ours: str
    shape: Shape
    turn: Turn | None = None


@dataclass(frozen=True)
class Fit:
    """How a checkpoint and a release differ; the head's class count is no difference."""

    release: str
    family: Family
    missing: tuple[str, ...]
    left_over: tuple[str, ...]
    reshaped: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.missing) + len(self.left_over) + len(self.reshaped)

    def __str__(self) -> str:
        parts = (("missing", self.missing), ("left over", self.left_over), ("of another shape", self.reshaped))
        return "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in parts if names)


def load_released(
    source: str | Path | Mapping[str, Any], name: str | None = None, num_classes: int | None = None
) -> nn.Module:
    """Load a released checkpoint into our model of the same function, in evaluation mode.

    `name` (a key of `RELEASES`) is needed only where names and shapes fit two models. With `num_classes`, the model
    has that many classes: the checkpoint's own head where it has as many, else a fresh one.
    """
    if num_classes is not None and num_classes < 1:
        raise GlocalError(f"num_classes is {num_classes}; a head has at least one class.")
    tensors = {key: value for key, value in read_tensors(source).items() if key.rpartition(".")[2] not in STRUCTURAL}
    fit = _recognise({key: tuple(value.shape) for key, value in tensors.items()}, name)
    release = RELEASES[fit.release]
    found = _classes(tensors)
    if num_classes is None and found != release.classes:
        raise GlocalError(
            f"this is {fit.release} with a head of {found} classes; the release has {release.classes}. Pass "
            f"num_classes={found} to keep this head, or another number for a fresh head of that size."
        )
    model = build(release, num_classes or found)
    state = model.state_dict()
    for theirs, entry in signature(fit.release, fit.family).items():
        if entry.ours in _HEAD and (num_classes or found) != found:
            continue
        state[entry.ours] = _bring(tensors[theirs], entry, state[entry.ours], fit.family)
    model.load_state_dict(state)
    return model.eval()


@cache
def signature(release: str, family: Family | None = None) -> dict[str, Entry]:
    """List the tensors a release holds, from a build of our own model without storage."""
    family = RELEASES[release].family if family is None else family
    with torch.device("meta"):
        state = build(RELEASES[release], RELEASES[release].classes).state_dict()
    entries: dict[str, Entry] = {}
    for ours, tensor in state.items():
        if ours.rpartition(".")[2] not in STRUCTURAL:
            turn = family.turn(ours)
            shape = tensor.shape if turn is None else turn.there(tensor).shape
            entries[family.name(ours)] = Entry(ours, tuple(shape), turn)
    return entries


def _recognise(shapes: dict[str, Shape], name: str | None) -> Fit:
    if name is not None and name not in RELEASES:
        raise GlocalError(f"unknown release {name!r}.{nearest(name, RELEASES)} There are: {', '.join(RELEASES)}.")
    fits = [_compare(shapes, each, family) for each, family in _candidates(shapes, name)]
    whole = [fit for fit in fits if not fit]
    if len(whole) == 1 or (whole and name is not None):
        return whole[0]
    if whole:
        names = " or ".join(f"name={fit.release!r}" for fit in whole)
        raise GlocalError(f"{len(whole)} releases have these names and shapes. Say which one it is: {names}.")
    if not fits:
        raise GlocalError(
            f"these {len(shapes)} tensors ({_some(sorted(shapes))}) are of no release that glocal knows. "
            f"It knows: {', '.join(RELEASES)}."
        )
    closest = min(fits, key=len)
    verb = "does not fit" if name else "fits no release; the closest is"
    raise GlocalError(f"the checkpoint {verb} {closest.release}. {closest}. Nothing was loaded.")


def _candidates(shapes: dict[str, Shape], name: str | None) -> list[tuple[str, Family]]:
    wanted = list(RELEASES) if name is None else [name]
    theirs = [(each, RELEASES[each].family) for each in wanted]
    marked = [(each, family) for each, family in theirs if all(mark in shapes for mark in family.marks)]
    seen = {each for each, _ in marked}
    own = [(each, _OWN) for each, family in theirs if family.own in shapes and each not in seen]
    return marked + own or ([] if name is None else theirs)


def _compare(shapes: dict[str, Shape], release: str, family: Family) -> Fit:
    wanted = signature(release, family)
    other = [
        f"{key} is {shapes[key]}, not {entry.shape}"
        for key, entry in wanted.items()
        if key in shapes and _size(key, shapes[key]) != _size(key, entry.shape)
    ]
    missing, left_over = (key for key in wanted if key not in shapes), (key for key in shapes if key not in wanted)
    return Fit(release, family, tuple(missing), tuple(left_over), tuple(other))


def _size(key: str, shape: Shape) -> Shape:
    return shape[1:] if key in _HEAD else shape


def _classes(tensors: dict[str, Tensor]) -> int:
    return next(tensors[key].shape[0] for key in _HEAD if key in tensors)


def _bring(tensor: Tensor, entry: Entry, ours: Tensor, family: Family) -> Tensor:
    if family.zeroed is not None and re.search(family.zeroed, entry.ours):
        return torch.zeros_like(ours)
    turned = tensor if entry.turn is None else entry.turn.back(tensor)
    return turned.reshape(ours.shape).to(ours.dtype)


def build(release: Release, classes: int) -> nn.Module:
    """Build our model of a release, with fresh weights."""
    mechanisms = named(release.mechanisms) if release.mechanisms else ()
    return create_model(release.model, *mechanisms, num_classes=classes, **release.arguments)


def _some(names: tuple[str, ...] | list[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
