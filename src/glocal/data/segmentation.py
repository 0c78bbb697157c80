"""Images with label maps: the layouts of CamVid, Cityscapes, ADE20K, VOC, and plain pairs of folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from glocal.data.dense import DenseImages, DensePair, Findings, Labelled
from glocal.data.images import UNREADABLE, few
from glocal.data.settings import DataSettings
from glocal.data.splits import split_names
from glocal.errors import GlocalError

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm")
# The 19 classes that Cityscapes evaluates, by the label ids of its files.
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light",
    20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car",
    27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle",
}  # fmt: skip
VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where a part's files lie, and what the numbers in its label maps mean."""

    pairs: list[tuple[Path, Path]]
    classes: tuple[str, ...] = ()
    ignore: int = 255
    table: tuple[int, ...] | None = None


def load_segmentation(settings: DataSettings) -> DensePair:
    """Open a folder of images with label maps, and say what had to be left out."""
    root = Path(settings.root or settings.name).expanduser()
    if not root.is_dir():
        raise GlocalError(f"{root} is no folder. Give --data one with images and label maps.")
    findings = Findings()
    train, val = (_part(root, names, settings, findings) for names in split_names(settings))
    if len(train.classes) != len(val.classes):  # counted ones: one part may lack the last of them
        classes = max(train.classes, val.classes, key=len)
        train, val = replace(train, classes=classes), replace(val, classes=classes)
    return DensePair(train, val, findings.notes(settings.unreadable))


def _part(root: Path, names: tuple[str, ...], settings: DataSettings, findings: Findings) -> DenseImages:
    layout = next((found for name in names for read in LAYOUTS if (found := read(root, name))), None)
    if layout is None or not layout.pairs:
        raise GlocalError(
            f"{root} holds no images with label maps for {' or '.join(names)}. Known layouts: train/ with trainannot/ "
            f"(CamVid), leftImg8bit/ with gtFine/ (Cityscapes), images/training with annotations/training (ADE20K), "
            f"JPEGImages/ with SegmentationClass/ (VOC)."
        )
    chosen = settings.dense
    classes, ignore, table = chosen.classes or layout.classes, layout.ignore, layout.table
    ignore = ignore if chosen.ignore is None else chosen.ignore
    if not classes:
        classes = _counted(layout, ignore)
    samples = [sample for image, labels in layout.pairs if (sample := _checked(image, labels, findings))]
    if not samples:
        findings.notes(0)
    images = DenseImages(samples, classes, ignore, table)
    _check_values(images, findings)
    return images


def read_labels(sample: Labelled, images: DenseImages) -> tuple[Tensor, list[int]]:
    """Read a label map; pixels whose value is no class are ignored, and those values told."""
    from PIL import Image

    with Image.open(sample.labels) as opened:
        labels = torch.from_numpy(np.array(opened, dtype=np.int64))
    if images.table is not None:
        labels = torch.tensor(images.table)[labels.clamp(0, len(images.table) - 1)]
    strange = (labels != images.ignore) & ((labels < 0) | (labels >= len(images.classes)))
    values: list[int] = labels[strange].unique().tolist()
    labels[strange] = images.ignore
    return labels, values


def _check_values(images: DenseImages, findings: Findings, most: int = 200) -> None:
    """Look into the first label maps: a few odd ones are mended, but most of them odd means other classes."""
    odd: list[tuple[str, int]] = []
    looked = [each for each in images.samples[:most] if isinstance(each, Labelled)]
    for sample in looked:
        try:
            _, values = read_labels(sample, images)
        except UNREADABLE:
            continue  # told when it is read
        odd += [(sample.labels.name, values[-1])] if values else []
    for name, value in odd:
        findings.mend(f"label maps with value {value}, which is no class; such pixels are ignored", name)
    if 2 * len(odd) > len(looked):
        name, value = odd[0]
        raise GlocalError(
            f"{len(odd)} of {len(looked)} label maps hold values that are no class, such as {value} in {name}; the "
            f"classes run from 0 to {len(images.classes) - 1}, {images.ignore} is ignored. "
            f"Set data.dense.classes, or data.dense.ignore={value}."
        )


def _checked(image: Path, labels: Path, findings: Findings) -> Labelled | None:
    from PIL import Image

    if not labels.is_file():
        findings.unusable.append(f"{image.name} (no label map {labels.name})")
        return None
    try:
        with Image.open(image) as first, Image.open(labels) as second:  # reads the heads of the files only
            sizes, mode = (first.size, second.size), second.mode
    except OSError:
        findings.unusable.append(f"{image.name} (it or its label map is no image)")
        return None
    if sizes[0] != sizes[1]:
        (w, h), (label_w, label_h) = sizes
        findings.unusable.append(f"{image.name} ({w}x{h}, its label map {label_w}x{label_h})")
        return None
    if mode not in ("L", "P", "I", "I;16", "1"):
        raise GlocalError(
            f"{labels} is a colour image ({mode}); a label map has one number per pixel. "
            f"Turn the colours into class numbers first."
        )
    return Labelled(image, labels)


def _counted(layout: Layout, ignore: int) -> tuple[str, ...]:
    """Count the classes of unnamed ones from the label maps themselves."""
    from PIL import Image

    values: set[int] = set()
    for _, labels in layout.pairs:
        if labels.is_file():
            with Image.open(labels) as opened:
                values |= set(np.unique(np.asarray(opened)).tolist())
    if layout.table is not None:
        values = {layout.table[min(value, len(layout.table) - 1)] for value in values}
    values -= {ignore, 255}
    if not values:
        raise GlocalError(f"the label maps ({few([p.name for _, p in layout.pairs])}) hold no class at all.")
    return tuple(f"class {i}" for i in range(max(values) + 1))


def _camvid(root: Path, name: str) -> Layout | None:
    pairs = _beside(root / name, root / f"{name}annot")
    facts = json.loads((root / "classes.json").read_text()) if pairs and (root / "classes.json").is_file() else {}
    ignore: int = facts.get("ignore_index", 255)
    classes = tuple(facts.get("classes", ()))
    # The last name may stand for what is ignored.
    return Layout(pairs, classes[:ignore] if ignore == len(classes) - 1 else classes, ignore) if pairs else None


def _cityscapes(root: Path, name: str) -> Layout | None:
    images = sorted((root / "leftImg8bit" / name).glob("*/*_leftImg8bit.png"))
    pairs: list[tuple[Path, Path]] = []
    for image in images:
        stem = image.name.removesuffix("_leftImg8bit.png")
        pairs.append((image, root / "gtFine" / name / image.parent.name / f"{stem}_gtFine_labelIds.png"))
    table = tuple(list(CITYSCAPES).index(i) if i in CITYSCAPES else 255 for i in range(256))
    return Layout(pairs, tuple(CITYSCAPES.values()), 255, table) if pairs else None


def _ade20k(root: Path, name: str) -> Layout | None:
    name = {"train": "training", "val": "validation"}.get(name, name)
    pairs = _beside(root / "images" / name, root / "annotations" / name)
    # 0 is everything else; the classes run from 1 to 150.
    return Layout(pairs, (), 255, (255, *range(255))) if pairs else None


def _voc(root: Path, name: str) -> Layout | None:
    from glocal.data.detection import voc_home

    home = root if (root / "SegmentationClass").is_dir() else voc_home(root)
    listing = home / "ImageSets" / "Segmentation" / f"{name}.txt" if home else None
    if home is None or listing is None or not listing.is_file():
        return None
    stems = listing.read_text().split()
    return Layout([(home / "JPEGImages" / f"{s}.jpg", home / "SegmentationClass" / f"{s}.png") for s in stems], VOC)


def _folders(root: Path, name: str) -> Layout | None:
    for labels in ("labels", "masks", "annotations"):
        if pairs := _beside(root / "images" / name, root / labels / name):
            return Layout(pairs)
    return None


def _beside(images: Path, labels: Path) -> list[tuple[Path, Path]]:
    """Pair images with the label maps of the same name."""
    if not (images.is_dir() and labels.is_dir()):
        return []
    maps = {path.stem: path for path in labels.iterdir()}
    found = sorted(path for path in images.iterdir() if path.suffix.lower() in _IMAGES)
    return [(path, maps.get(path.stem, labels / f"{path.stem}.png")) for path in found]


LAYOUTS: tuple[Callable[[Path, str], Layout | None], ...] = (_camvid, _cityscapes, _ade20k, _voc, _folders)
