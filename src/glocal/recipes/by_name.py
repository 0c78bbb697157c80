"""A classifier to measure: a run, a saved or released file, or a model's name with timm's weights or a file's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from timm.models import is_model, list_models
from torch import Tensor, nn

from glocal.errors import GlocalError, nearest
from glocal.recipes.trained import Trained, open_trained, without_run
from glocal.released import RELEASES, load_released
from glocal.released.files import read_tensors
from glocal.store import fill
from glocal.zoo import create_model


@dataclass(frozen=True)
class Look:
    """How images are brought before a model, where that is not to be as its run or its host says."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: float | None = None


def open_classifier(
    text: str, pretrained: bool = False, checkpoint: Path | None = None, look: Look | None = None
) -> Trained:
    """Open what is asked for on the device that is there."""
    place = Path(text)
    if place.exists():
        if pretrained or checkpoint:
            option = "--pretrained" if pretrained else "--checkpoint"
            raise GlocalError(f"{option} gives weights to a model by its name; {text} has its own. Leave it out.")
        released = place.is_file() and place.suffix != ".safetensors" and place.parent.name != "checkpoints"
        trained = without_run(load_released(place)) if released else open_trained(text)
    elif ":" in text or is_model(text.split(".")[0]):  # a colon is of a hub
        trained = _named(text, pretrained, checkpoint)
    else:
        near = nearest(text, list_models()) if pretrained or checkpoint else ""
        raise GlocalError(f"{text} is not a file, a run folder or the name of a model.{near}")
    return _looking(trained, look or Look())


def _named(name: str, pretrained: bool, checkpoint: Path | None) -> Trained:
    if pretrained and checkpoint:
        raise GlocalError("give --pretrained or --checkpoint, not both: one sets the weights of the other.")
    if checkpoint is None:
        if not pretrained:
            raise GlocalError(
                f"{name} by its name alone has random weights. Give --pretrained for timm's, or --checkpoint FILE."
            )
        return without_run(create_model(name, pretrained=True))
    if name in RELEASES:
        return without_run(load_released(checkpoint, name))
    model = create_model(name)
    fill(model, _under_grafts(model, read_tensors(checkpoint)), checkpoint)
    return without_run(model)


def _under_grafts(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename a plain host's tensors to where they lie in a grafted one; CB, which has no weights, adds no names."""
    ours = {name.replace(".host.", "."): name for name in model.state_dict()}
    return {ours.get(name, name): tensor for name, tensor in tensors.items()}


def _looking(trained: Trained, look: Look) -> Trained:
    changed = {key: value for key, value in (("mean", look.mean), ("std", look.std)) if value is not None}
    for key, value in changed.items():
        wanted = len(trained.mean)
        if len(value) not in (1, wanted):
            raise GlocalError(f"--{key} has {len(value)} numbers; the model's images have {wanted} channels.")
        changed[key] = value * wanted if len(value) == 1 else value
    if (lowest := min(changed.get("std", (1.0,)))) <= 0:
        raise GlocalError(f"--std has {lowest:g}; a deviation is above 0.")
    crop = {} if look.crop is None else {"data": replace(trained.data, crop_pct=look.crop, memory="no")}
    return replace(trained, **changed, **crop)


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Read numbers parted by commas."""
    if text is None:
        return None
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(isfinite, found)):
        raise GlocalError(f"{option} {text!r} is no list of numbers. Write 0.5, or 0.485,0.456,0.406.")
    return found
