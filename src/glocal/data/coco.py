"""COCO's JSON: boxes, outlines and crowds.

Lin et al., "Microsoft COCO: Common Objects in Context".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glocal.data.dense import Boxed, DenseImages, Findings, clean
from glocal.data.settings import DataSettings
from glocal.data.splits import split_names
from glocal.errors import GlocalError


def find_coco(root: Path, names: tuple[str, ...]) -> Path | None:
    """Find the JSON of a part: annotations/instances_train2017.json, train.json, train/_annotations.coco.json."""
    patterns = ("annotations/*.json", "*.json", "*/_annotations.coco.json")
    listed = [path for pattern in patterns for path in root.glob(pattern)]
    for name in names:
        fitting = [path for path in listed if name in _words(path)]
        if fitting:
            return min(fitting, key=lambda path: ("instances" not in path.name, str(path)))
    return None


def _words(path: Path) -> set[str]:
    own = path.stem.replace("2017", "").replace("2014", "").split("_")
    return {*own, path.parent.name}


def open_coco(root: Path, settings: DataSettings, findings: Findings) -> tuple[DenseImages, DenseImages]:
    """Open both parts; categories become classes in the order of their ids."""
    files = [find_coco(root, names) for names in split_names(settings)]
    if files[0] is None or files[1] is None:
        wanted = " or ".join(split_names(settings)[1])
        raise GlocalError(f"{root} has a training JSON but none for validation ({wanted}). Name it in data.eval_split.")
    train, val = (_read(path) for path in files if path is not None)
    classes = settings.dense.classes or tuple(each["name"] for each in _categories(train))
    parts = [_part(root, path, each, classes, findings) for path, each in zip(files, (train, val), strict=True) if path]
    return parts[0], parts[1]


def _read(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ("images", "annotations", "categories") if key not in read]
    except (OSError, ValueError) as error:
        raise GlocalError(f"{path} cannot be read as JSON: {error}") from None
    if missing:
        raise GlocalError(f"{path} lacks {', '.join(missing)}; COCO's files have images, annotations, categories.")
    return read


def _categories(read: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(read["categories"], key=lambda each: each["id"])


def _part(root: Path, path: Path, read: dict[str, Any], classes: tuple[str, ...], findings: Findings) -> DenseImages:
    names = {each["id"]: each["name"] for each in read["categories"]}
    by_image: dict[Any, list[dict[str, Any]]] = {}
    for each in read["annotations"]:
        by_image.setdefault(each["image_id"], []).append(each)
    home = _home(root, path, read["images"])
    samples: list[Boxed] = []
    for entry in read["images"]:
        file = home / entry["file_name"]
        if file.is_file():
            samples.append(_boxed(file, entry, by_image.get(entry["id"], []), names, classes, findings))
        else:
            findings.unusable.append(f"{entry['file_name']} (missing)")
    return DenseImages(samples, classes)


def _boxed(
    file: Path,
    entry: dict[str, Any],
    listed: list[dict[str, Any]],
    names: dict[Any, str],
    classes: tuple[str, ...],
    findings: Findings,
) -> Boxed:
    things = [thing for thing in listed if names.get(thing["category_id"]) in classes]
    for thing in listed:
        if thing not in things:
            what = f"objects of category {thing['category_id']}, which is not among the classes, left out"
            findings.mend(what, file.name)
    boxes = torch.tensor([thing["bbox"] for thing in things], dtype=torch.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    size = (entry["height"], entry["width"])
    boxes, kept = clean(boxes, size, file.name, findings)
    labels = torch.tensor([classes.index(names[thing["category_id"]]) for thing in things], dtype=torch.long)
    hard = torch.tensor([bool(thing.get("iscrowd")) for thing in things], dtype=torch.bool)
    outlines = [thing.get("segmentation") for thing, keep in zip(things, kept.tolist(), strict=True) if keep]
    return Boxed(file, size, boxes[kept], labels[kept], hard[kept], tuple(outlines) if all(outlines) else ())


def _home(root: Path, path: Path, images: list[dict[str, Any]]) -> Path:
    """Find the folder the file names start from."""
    stem = path.stem.split("_")[-1]
    first = images[0]["file_name"] if images else ""
    places = [path.parent, root / stem, root / "images" / stem, root / "images", root]
    return next((place for place in places if (place / first).is_file()), root / stem)


def draw_outline(outline: Any, size: tuple[int, int]) -> Tensor:
    """Fill a COCO outline: a (H, W) mask of zeros and ones."""
    try:
        from faster_coco_eval.core import mask
    except ImportError:
        raise GlocalError("COCO's outlines are read by an extra: pip install 'glocal[detect]'.") from None
    height, width = size
    if isinstance(outline, list):
        rle = mask.merge(mask.frPyObjects(outline, height, width))  # pyright: ignore[reportArgumentType]
    else:
        rle = mask.frPyObjects(outline, height, width) if isinstance(outline["counts"], list) else outline
    return torch.from_numpy(np.ascontiguousarray(mask.decode(rle)))
