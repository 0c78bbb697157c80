"""The reassessed labels of ImageNet's validation images: any number of classes for an image.

Beyer et al., "Are we done with ImageNet?"
"""

from __future__ import annotations

import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glocal.data.imagenet import wnids
from glocal.data.images import FileImages, FolderFiles, few, image_suffixes
from glocal.errors import GlocalError

IMAGES = 50_000  # of the validation part
_FILE = re.compile(r"ILSVRC2012_val_(\d{8})\.\w+")
_PUBLISHED = "Take the published real.json, or `--labels real` for the copy that comes with timm."


def real_labels(source: str) -> list[list[int]]:
    """Read the labels of each validation image, in the order of the files' names; `real` is timm's copy of them."""
    if source == "real":
        return json.loads((files("timm.data") / "_info" / "imagenet_real_labels.json").read_text())
    path = Path(source)
    if not path.is_file():
        raise GlocalError(f"{path} is not a file. {_PUBLISHED}")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise GlocalError(f"{path} is no whole JSON file ({error}). {_PUBLISHED}") from None
    if fault := _fault(found):
        raise GlocalError(f"{path} {fault} {_PUBLISHED}")
    return found


def _fault(found: Any) -> str:
    if not isinstance(found, list):
        return f"holds a {type(found).__name__}; wanted a list of {IMAGES:,} lists of class numbers."
    if len(found) != IMAGES:
        return f"has labels of {len(found):,} images; wanted {IMAGES:,}, the validation images in their files' order."
    for place, each in enumerate(found):
        if not isinstance(each, list):
            return f"gives {file_name(place)} a {type(each).__name__}; wanted a list of class numbers."
        if wrong := [one for one in each if type(one) is not int or not 0 <= one < len(wnids())]:
            return f"gives {file_name(place)} the label {wrong[0]!r}; classes have the numbers 0 to {len(wnids()) - 1}."
    return ""


def real_images(root: Path, labels: list[list[int]]) -> tuple[FileImages, tuple[str, ...]]:
    """Find the validation images that have labels, in whatever folders; an image's number is its place in the list."""
    found, other = _numbered(root)
    wanted = [place for place, each in enumerate(labels) if each]
    if not wanted:
        raise GlocalError(f"none of the {len(labels):,} images has a label. {_PUBLISHED}")
    if not found:
        told = f"it has {len(other):,} other images, such as {few(other, 1)}" if other else "it has no image at all"
        raise GlocalError(
            f"{root} has no image named as ImageNet's validation images are, {file_name(0)}; {told}. "
            f"Labels are found by these names: give the ILSVRC2012 validation images as they were published."
        )
    if missing := [file_name(place) for place in wanted if place not in found]:
        raise GlocalError(
            f"{root} lacks {len(missing):,} of the {len(wanted):,} images that have labels: {few(missing)}. "
            f"Unpack the validation images again; part of them would give another figure."
        )
    left = len(found.keys() - set(wanted))
    notes = (
        f"{left:,} images without labels are left out" if left else "",
        f"{len(other):,} images of other names ignored: {few(sorted(other))}" if other else "",
    )
    images = FolderFiles([found[place] for place in wanted], wanted)
    chosen = torch.arange(len(wanted))
    return FileImages(images, torch.tensor(wanted), wnids(), chosen), tuple(each for each in notes if each)


def padded(labels: list[list[int]]) -> Tensor:
    """Write lists of labels as one (images, most) tensor, with -1 where a list has ended."""
    most = max(map(len, labels))
    return torch.tensor([each + [-1] * (most - len(each)) for each in labels])


def file_name(place: int) -> str:
    """Name a validation image by its place."""
    return f"ILSVRC2012_val_{place + 1:08d}.JPEG"


def _numbered(root: Path) -> tuple[dict[int, str], list[str]]:
    if not root.is_dir():
        raise GlocalError(f"{root} is not a folder. Give the folder of the ILSVRC2012 validation images.")
    found: dict[int, str] = {}
    other: list[str] = []
    for place, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(each for each in names if not each.startswith(".")):
            file, match = os.path.join(place, name), _FILE.fullmatch(name)
            number = int(match[1]) - 1 if match else -1
            if not 0 <= number < IMAGES:
                other += [file] if os.path.splitext(name)[1].lower() in image_suffixes() else []
            elif number in found:
                raise GlocalError(f"{name} is there twice: {found[number]} and {file}. Take one of them away.")
            else:
                found[number] = file
    return found, other
