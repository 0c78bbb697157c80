"""Models by name: a host from timm's registry, and the mechanisms grafted onto it."""

from __future__ import annotations

from typing import Any

import timm
from timm.models import is_model, list_models
from timm.models._features import FeatureGetterNet
from torch import nn

import glocal.named_models  # noqa: F401  registers the papers' models with timm
from glocal.enhance import Record, enhance
from glocal.errors import GlocalError, nearest
from glocal.site import Mechanism


def create_model(
    name: str,
    *mechanisms: Mechanism,
    preserve: bool = False,
    pretrained: bool = False,
    features_only: bool = False,
    out_indices: tuple[int, ...] | int | None = None,
    **arguments: Any,
) -> nn.Module:
    """Build a timm model, graft mechanisms onto it, and remember its name and arguments so that `save` can too.

    With `features_only`, weights are loaded and mechanisms grafted first and the extractor is made last.
    """
    check_name(name)
    model = _build(name, pretrained, arguments)
    _check_patches(model)
    record = getattr(model, "glocal", None)  # a named model comes with grafts of its own
    if not isinstance(record, Record):
        record = Record(type(model).__name__)
        model.glocal = record  # pyright: ignore[reportArgumentType]
    # A saved model has its weights; the file they once came from may be gone when it is loaded.
    kept = {key: value for key, value in arguments.items() if key != "checkpoint_path"}
    record.name, record.arguments, record.steps = name, kept, []
    if mechanisms:
        model = enhance(model, *mechanisms, inplace=True, preserve=preserve)
    return _extractor(model, out_indices) if features_only else model


def _build(name: str, pretrained: bool, arguments: dict[str, Any]) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=pretrained, **arguments)
    except (OSError, RuntimeError, ValueError) as error:
        if ":" in name:  # a place on a hub or on a disk, which may not be there, or hold no model
            raise GlocalError(
                f"{name} cannot be opened: {_told(error)} Places are hf-hub:owner/name, which "
                f"needs a connection, and local-dir:folder, which holds timm's config.json."
            ) from error
        if "allocate memory" in str(error):
            raise GlocalError(f"{name} does not fit into memory at {arguments}. Use smaller images.") from error
        if not pretrained or isinstance(error, ValueError):
            raise
        raise GlocalError(
            f"the pretrained weights of {name} cannot be had: {_told(error)} Leave out pretrained=True; "
            f"the authors' checkpoints load with glocal.load_released(file)."
        ) from error


def _told(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), f"{type(error).__name__}.")


def check_name(name: str) -> None:
    """Raise unless timm knows the name; a name with a colon is a place on a hub, and timm's own business."""
    bare = name.split(".")[0]
    if ":" not in name and not is_model(bare):
        raise GlocalError(f"unknown model {name!r}.{nearest(bare, list_models())} `timm.list_models()` names them all.")


def _check_patches(model: nn.Module) -> None:
    """Raise when whole patches do not cover the image: timm would drop the rest of it without a word."""
    for embed in model.modules():
        patch, image = getattr(embed, "patch_size", None), getattr(embed, "img_size", None)
        if not (isinstance(patch, tuple) and isinstance(image, tuple)) or getattr(embed, "dynamic_img_pad", False):
            continue
        for side, length in zip(("height", "width"), zip(image, patch, strict=True), strict=True):
            size, step = length
            if not _overlaps(embed) and size % step:
                below = size - size % step
                near = f"{below} or {below + step}" if below else f"{step}"
                raise GlocalError(f"image {side} {size} is not a multiple of the patch {side} {step}. Use {near}.")


def _overlaps(embed: nn.Module) -> bool:
    return any(each.kernel_size != each.stride for each in embed.children() if isinstance(each, nn.Conv2d)) and (
        not hasattr(embed, "unfold")  # TNT cuts its patches before it convolves
    )


def _extractor(model: nn.Module, out_indices: tuple[int, ...] | int | None) -> nn.Module:
    if not hasattr(model, "forward_intermediates"):
        raise GlocalError(f"{type(model).__name__} has no intermediate features to extract.")
    return FeatureGetterNet(model, out_indices=4 if out_indices is None else out_indices)
