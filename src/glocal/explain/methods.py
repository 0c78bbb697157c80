"""The ways to look at one image with one model; each gives plain tensors for `draw`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from glocal.errors import GlocalError
from glocal.explain.dense_rollout import Box, from_boxes, from_segmentation, global_map
from glocal.explain.keep import token_at
from glocal.explain.look import Look
from glocal.explain.picture import crop_box, read_labels
from glocal.explain.rollout import Fusion, RollOut, gradient_rollout, looked_at
from glocal.explain.subject import Subject
from glocal.explain.watch import watch
from glocal.lattice import Lattice

Place = tuple[float, float]  # shares of height and width, 0 to 1


@dataclass(frozen=True)
class Ask:
    """What to show."""

    fusion: Fusion = "mean"
    """How roll-out fuses heads: mean, max or min."""
    discard: float = 0.0
    """Share of the smallest weights that roll-out drops."""
    layer: int | None = None
    """Layer of `heads`, and the last one that roll-out follows; the last by default."""
    head: int | None = None
    """One head of `heads` instead of all."""
    place: Place | None = None
    """The patch that looks, instead of the class token."""
    threshold: float = 0.0
    """Share of the highest weight below which `heads` leaves patches dark, on every side alike."""
    target: int | None = None
    """Class of `gradient`; the predicted one by default."""
    labels: Path | None = None
    """Label map for `dense`."""
    boxes: tuple[tuple[str, Box], ...] = ()
    """Named boxes for `dense`: left, top, right, bottom in pixels of the image as it was given."""


def rollout_map(subject: Subject, image: Tensor, ask: Ask) -> Tensor:
    """Roll out what the class token, the mean token or one patch looked at: (H, W); 1 is a uniform look."""
    flow = rolled(subject, image, ask)
    return density(looked_at(flow.flow, _first(flow), last=flow.lattice, token=_token(flow.lattice, ask, subject))[0])


def rolled(subject: Subject, image: Tensor, ask: Ask) -> RollOut:
    """Roll one image's attention out, layer by layer, keeping no map."""
    roll = RollOut(ask.fusion, ask.discard)
    last = _last(ask)

    def add(look: Look) -> None:
        if look.group == "self" and look.layer <= last:
            roll.add(look.square, look.queries)

    with torch.no_grad(), watch(subject.model, heads=ask.fusion, each=add):
        subject.model(image)
    _check_layer(subject, ask)
    return roll


def gradient_map(subject: Subject, image: Tensor, ask: Ask) -> Tensor:
    """Roll out what spoke for a class, after Chefer et al.: (H, W), scaled like `rollout_map`."""
    with torch.enable_grad(), watch(subject.model, gradients=True) as seen:
        scores = subject.model(image.clone().requires_grad_())  # a folded model's weights ask for none
        if not isinstance(scores, Tensor) or scores.ndim != 2:
            raise GlocalError(f"{subject.name} gives no scores of classes, which gradients start from. Use rollout.")
        target = int(scores[0].argmax()) if ask.target is None else ask.target
        if not 0 <= target < scores.shape[-1]:
            raise GlocalError(f"class {target} is not there; {subject.name} has classes 0 to {scores.shape[-1] - 1}.")
        scores[0, target].backward()
        looks = seen.looks("self")
        maps, gradients, lattices = seen.maps, seen.gradients, seen.lattices
    subject.model.zero_grad(set_to_none=True)
    if any(lattice is None for lattice in lattices):
        raise GlocalError(f"the tokens of {subject.name} sit on no lattice, so there is no map to draw.")
    flow = gradient_rollout(maps, gradients, lattices, itself=False)
    first, last = looks[0].queries, looks[-1].queries
    assert first is not None
    return density(looked_at(flow, first, last=last, token=_token(last, ask, subject))[0].clamp_min(0))


def head_maps(subject: Subject, image: Tensor, ask: Ask) -> Tensor:
    """Show what each head of one layer looks at: (heads, H, W); weights as they are."""
    look = _one_layer(subject, image, ask)
    if look.keys is None or look.queries is None:
        raise GlocalError(f"the tokens of {look.path} sit on no lattice, so there is no map to draw.")
    maps = looked_from(look, ask.place)
    if ask.head is None:
        return maps
    if not 0 <= ask.head < len(maps):
        raise GlocalError(
            f"head {ask.head} is not there; layer {look.layer} of {subject.name} has heads 0 to {len(maps) - 1}."
        )
    return maps[ask.head : ask.head + 1]


def looked_from(look: Look, place: Place | None) -> Tensor:
    """Give what one place of the image, or the class or mean token, looks at in one layer: (heads, H, W)."""
    assert look.queries is not None and look.keys is not None
    whole = look.attention[0]  # (heads, N, M)
    if place is not None:
        rows = whole[:, token_at(look.queries, *place)]
    elif look.class_token:
        rows = whole[:, 0]
    else:
        rows = whole[:, look.queries.prefix :].mean(dim=1)
    return rows[:, look.keys.prefix :].unflatten(1, (look.keys.height, look.keys.width))


def dense_maps(subject: Subject, picture: Image.Image, ask: Ask) -> dict[str, Tensor]:
    """Roll out densely: the global map, then one map for each class of a label map or of boxes."""
    image = subject.tensor(picture)
    roll = rolled(subject, image, ask)
    first = _first(roll)
    maps = {"global": density(global_map(roll.flow, first, roll.lattice)[0])}
    if ask.labels is not None:
        labels = read_labels(ask.labels, subject.size)
        parts = from_segmentation(roll.flow, labels, first, roll.lattice)
        return maps | {subject.label(index): part[0] for index, part in parts.items()}
    if not ask.boxes:
        raise GlocalError("dense roll-out needs to know which tokens belong together. Give a label map or boxes.")
    grouped: dict[str, list[Box]] = {}
    for name, box in ask.boxes:
        grouped.setdefault(name, []).append(crop_box(box, picture.size, subject.size))
    parts = from_boxes(roll.flow, grouped, subject.size, first, roll.lattice)
    return maps | {name: part[0] for name, part in parts.items()}


def density(patch_map: Tensor) -> Tensor:
    """Scale a map so that 1 is what every patch would get if all got the same; maps of any size compare."""
    return patch_map / patch_map.mean().clamp_min(torch.finfo(patch_map.dtype).tiny)


def _one_layer(subject: Subject, image: Tensor, ask: Ask) -> Look:
    seen: dict[int, Look] = {}

    def note(look: Look) -> None:
        if look.group == "self" and (ask.layer is None or look.layer == ask.layer):
            seen.clear()
            seen[look.layer] = look

    with torch.no_grad(), watch(subject.model, each=note):
        subject.model(image)
    if not seen:
        _check_layer(subject, ask)
        raise GlocalError(f"layer {ask.layer} of {subject.name} has no attention. Choose another.")
    return next(iter(seen.values()))


def layers_of(subject: Subject) -> int:
    """Count the layers of a model's chain."""
    from glocal.explain.places import places

    listed, handles = places(subject.model)
    for handle in handles:
        handle.remove()
    return max((place.depth for place in listed if place.group == "self"), default=0)


def _check_layer(subject: Subject, ask: Ask) -> None:
    depth = layers_of(subject)
    if ask.layer is not None and not 0 <= ask.layer < depth:
        raise GlocalError(f"layer {ask.layer} is not there; {subject.name} has layers 0 to {depth - 1}.")


def _last(ask: Ask) -> int:
    return 1 << 30 if ask.layer is None else ask.layer


def _first(roll: RollOut) -> Lattice:
    if roll.first is None:
        raise GlocalError("the model's tokens sit on no lattice, so there is no map to draw.")
    return roll.first


def _token(last: Lattice | None, ask: Ask, subject: Subject) -> int | Literal["class", "mean"]:
    if ask.place is not None and last is not None:
        return token_at(last, *ask.place)
    has_class = getattr(subject.model, "has_class_token", True)  # registers alone are no class token
    return "class" if has_class else "mean"
