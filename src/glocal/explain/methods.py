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


@dataclass(frozen=True)
class Rolled:
    """A roll-out, and which of its tokens speaks for the image."""

    roll: RollOut
    class_token: bool

    @property
    def first(self) -> Lattice:
        """The lattice of the columns."""
        if self.roll.first is None:
            raise GlocalError("the model's tokens sit on no lattice, so there is no map to draw.")
        return self.roll.first


def rollout_map(subject: Subject, image: Tensor, ask: Ask) -> Tensor:
    """Roll out what the class token, the mean token or one patch looked at: (H, W); 1 is a uniform look."""
    found = rolled(subject, image, ask)
    token = _token(found.roll.lattice, ask, found.class_token)
    return density(looked_at(found.roll.flow, found.first, last=found.roll.lattice, token=token)[0])


def rolled(subject: Subject, image: Tensor, ask: Ask) -> Rolled:
    """Roll one image's attention out, layer by layer, keeping no map."""
    roll, classes = RollOut(ask.fusion, ask.discard), [False]
    last = 1 << 30 if ask.layer is None else ask.layer

    def add(look: Look) -> None:
        if look.group == "self" and look.layer <= last:
            roll.add(look.square, look.queries)
            classes.append(look.class_token)

    with torch.no_grad(), watch(subject.model, heads=ask.fusion, each=add):
        subject.model(image)
    _check_layer(subject, ask)
    return Rolled(roll, classes[-1])


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
    token = _token(last, ask, looks[-1].class_token)
    return density(looked_at(flow, first, last=last, token=token)[0].clamp_min(0))


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
    """Roll out densely: the global map, then one map for each class.

    Classes come from a label map, from boxes, or, where neither is given, from what the model itself predicts.
    """
    image = subject.tensor(picture)
    found = rolled(subject, image, ask)
    flow, first, last = found.roll.flow, found.first, found.roll.lattice
    maps = {"global": density(global_map(flow, first, last)[0])}
    labels, boxes = belonging(subject, picture, image, ask)
    if labels is not None:
        parts = from_segmentation(flow, labels, first, last)
        return maps | {subject.label(index): part[0] for index, part in parts.items()}
    return maps | {name: part[0] for name, part in from_boxes(flow, boxes, subject.size, first, last).items()}


def belonging(
    subject: Subject, picture: Image.Image, image: Tensor, ask: Ask
) -> tuple[Tensor | None, dict[str, list[Box]]]:
    """Tell which patches belong together: labels of the (H, W) view, or boxes on it by name."""
    if ask.labels is not None:
        return read_labels(ask.labels, subject.size), {}
    named = [(name, crop_box(box, picture.size, subject.size)) for name, box in ask.boxes]
    if not named:
        labels, named = predicted(subject, image)
        if labels is not None:
            return labels, {}
    grouped: dict[str, list[Box]] = {}
    for name, box in named:
        grouped.setdefault(name, []).append(box)
    return None, grouped


def predicted(subject: Subject, image: Tensor, sure: float = 0.5) -> tuple[Tensor | None, list[tuple[str, Box]]]:
    """Ask a segmenter for its labels, or a detector for its boxes of at least this score."""
    with torch.no_grad():
        answer = subject.model(image)
    if isinstance(answer, Tensor) and answer.ndim == 4:
        return answer[0].argmax(dim=0), []
    if not (isinstance(answer, list) and answer and isinstance(answer[0], dict) and "boxes" in answer[0]):
        raise GlocalError(
            f"{subject.name} names whole images, so dense roll-out cannot know which tokens belong together. "
            f"Give a label map or boxes, or a model that segments or detects."
        )
    found = zip(answer[0]["boxes"].tolist(), answer[0]["labels"].tolist(), answer[0]["scores"].tolist(), strict=True)
    boxes = [
        (subject.label(label), (left, top, right, bottom))
        for (left, top, right, bottom), label, s in found
        if s >= sure
    ]
    if not boxes:
        raise GlocalError(f"{subject.name} finds no object here with a score of {sure} or more, so no class has a map.")
    return None, boxes


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


def _token(last: Lattice | None, ask: Ask, class_token: bool) -> int | Literal["class", "mean"]:
    if ask.place is not None and last is not None:
        return token_at(last, *ask.place)
    return "class" if class_token else "mean"  # registers alone are no class token
