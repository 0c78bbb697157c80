"""Whose classes are these: how a model's answers and the classes of images given to it belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from glocal.data import imagenet
from glocal.data.images import Images, StreamImages, few
from glocal.errors import GlocalError
from glocal.recipes.trained import Trained


@dataclass(frozen=True)
class Matched:
    """Images whose labels number `classes`, and which of the model's answers those are: all of them where not told."""

    images: Images
    classes: tuple[str, ...]
    columns: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def match(trained: Trained, images: Images, name: str, all_classes: bool = False) -> Matched:
    """Find the model's answer for each class, or refuse classes it has not learned.

    A model of ImageNet-1k takes folders named by wordnet ids or numbers. Where they are of some classes only, its
    answer is sought among these, unless `all_classes` are asked for.
    """
    known = None if isinstance(images, StreamImages) else imagenet_columns(trained)
    found = None if known is None else imagenet.places(images.classes, name)
    if known is None or found is None or isinstance(images, StreamImages):
        _refuse_other_classes(trained, images, name)
        return Matched(images, trained.classes, notes=_by_order(trained, images))
    columns = tuple(known[place] for place in found)
    if len(columns) == len(known):
        return Matched(images, images.classes, None if columns == tuple(range(len(known))) else columns)
    told = f"{name} has images of {len(columns)} of the model's {len(known)} classes"
    if all_classes:
        whole = replace(images, labels=torch.tensor(columns)[images.labels], classes=trained.classes)
        return Matched(whole, trained.classes, None, (f"{told}; its answer is sought among all",))
    return Matched(images, images.classes, columns, (f"{told}; its answer is sought among these {len(columns)} only",))


def _by_order(trained: Trained, images: Images) -> tuple[str, ...]:
    """Warn where a model's classes have no names, so that nothing tells whether these are they."""
    if trained.named or isinstance(images, StreamImages) or images.classes == trained.classes:
        return ()
    return (f"the model's classes have no names; they are taken in this order: {few(images.classes)}",)


def imagenet_columns(trained: Trained) -> tuple[int, ...] | None:
    """Tell which of a model's answers is each of ImageNet-1k's classes; nothing where it learned others.

    A model of 1,000 classes without names is taken to have them in ImageNet's order, as timm takes it.
    """
    names, wnids = trained.classes, imagenet.wnids()
    if len(names) != len(wnids):
        return None
    if not trained.named or names == tuple(map(str, range(len(wnids)))):
        return tuple(range(len(wnids)))
    answers = {name: place for place, name in enumerate(names)}
    return tuple(answers[each] for each in wnids) if answers.keys() == set(wnids) else None


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
