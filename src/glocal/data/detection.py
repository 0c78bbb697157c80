"""Images with boxes: VOC folders of XML, and COCO's JSON."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import torch

from glocal.data.coco import find_coco, open_coco
from glocal.data.dense import Boxed, DenseImages, DensePair, Findings, clean
from glocal.data.images import holdout
from glocal.data.settings import DataSettings
from glocal.data.splits import split_names
from glocal.errors import GlocalError


def load_detection(settings: DataSettings, seed: int = 0) -> DensePair:
    """Open a folder of images with boxes, and say what had to be mended or left out."""
    root = Path(settings.root or settings.name).expanduser()
    if not root.exists():
        raise GlocalError(f"{root} does not exist. Give --data a VOC folder, or a folder with COCO's JSON.")
    findings = Findings()
    home = voc_home(root)
    if home is not None:
        train, val = _open_voc(home, settings, seed, findings)
    elif find_coco(root, split_names(settings)[0]) is not None:
        train, val = open_coco(root, settings, findings)
    else:
        raise GlocalError(
            f"{root} has neither JPEGImages/ and Annotations/ (VOC) nor annotations/*train*.json (COCO). "
            f"Which layout do the images have?"
        )
    for part, name in ((train, "training"), (val, "validation")):
        if not len(part):
            raise GlocalError(f"{root} has no {name} images with annotations.")
    notes = findings.notes(settings.unreadable)
    empty = sum(not len(sample.labels) for part in (train, val) for sample in part.samples if isinstance(sample, Boxed))
    return DensePair(train, val, (*notes, *([f"{empty} images hold no object; they are kept"] if empty else [])))


def voc_home(root: Path) -> Path | None:
    """Find the folder that holds Annotations/, here or in VOCdevkit/VOC2012 below."""
    for home in (root, *sorted(root.glob("VOC20*")), *sorted(root.glob("VOCdevkit/*"))):
        if (home / "Annotations").is_dir() and (home / "JPEGImages").is_dir():
            return home
    return None


def _open_voc(home: Path, settings: DataSettings, seed: int, findings: Findings) -> tuple[DenseImages, DenseImages]:
    listed = [_read_split(home, names) for names in split_names(settings)]
    if listed[0] is None or listed[1] is None:
        stems = sorted(path.stem for path in (home / "Annotations").glob("*.xml"))
        kept, held = holdout(torch.zeros(len(stems), dtype=torch.long), settings.holdout, seed)
        listed = [[stems[i] for i in part.tolist()] for part in (kept, held)]
    parts = [[read for stem in stems or () if (read := _read_xml(home, stem, findings))] for stems in listed]
    found = sorted({thing[0] for part in parts for _, _, things in part for thing in things})
    classes = settings.dense.classes or tuple(found)
    for part in parts:
        for image, _, things in part:
            for thing in things:
                if thing[0] not in classes:
                    findings.mend(
                        f"objects of class {thing[0]!r}, which is not among the classes, left out", image.name
                    )
    made = [[_boxed(*each, classes, findings) for each in part] for part in parts]
    return DenseImages(made[0], classes), DenseImages(made[1], classes)


def _read_split(home: Path, names: tuple[str, ...]) -> list[str] | None:
    for name in names:
        listing = home / "ImageSets" / "Main" / f"{name}.txt"
        if listing.is_file():
            return [line.split()[0] for line in listing.read_text().splitlines() if line.strip()]
    return None


Thing = tuple[str, list[float], bool]  # class, corners, difficult


def _read_xml(home: Path, stem: str, findings: Findings) -> tuple[Path, tuple[int, int], list[Thing]] | None:
    from PIL import Image

    path = home / "Annotations" / f"{stem}.xml"
    image = next(iter(sorted((home / "JPEGImages").glob(f"{stem}.*"))), home / "JPEGImages" / f"{stem}.jpg")
    try:
        tree = ElementTree.parse(path)
        things = [_thing(each) for each in tree.getroot().iter("object")]
        with Image.open(image) as opened:  # the size in the XML is not always the image's
            size = (opened.height, opened.width)
    except FileNotFoundError as error:
        findings.unusable.append(f"{stem} ({Path(str(error.filename)).name} is missing)")
    except (ElementTree.ParseError, AttributeError, TypeError, ValueError):
        findings.unusable.append(f"{stem} ({path.name} is not whole)")
    except OSError:
        findings.unusable.append(f"{stem} ({image.name} is no image)")
    else:
        return image, size, things
    return None


def _thing(each: ElementTree.Element) -> Thing:
    box = each.find("bndbox")
    corners = [float(box.find(key).text) for key in ("xmin", "ymin", "xmax", "ymax")]  # pyright: ignore
    return str(each.findtext("name")), corners, each.findtext("difficult", "0").strip() == "1"


def _boxed(
    image: Path, size: tuple[int, int], things: list[Thing], classes: tuple[str, ...], findings: Findings
) -> Boxed:
    things = [each for each in things if each[0] in classes]
    boxes = torch.tensor([each[1] for each in things], dtype=torch.float32).reshape(-1, 4)
    boxes, kept = clean(boxes, size, image.name, findings)
    boxes[:, :2] = (boxes[:, :2] - 1).clamp(min=0)  # VOC counts pixels from 1, both ends included
    labels = torch.tensor([classes.index(each[0]) for each in things], dtype=torch.long)
    hard = torch.tensor([each[2] for each in things], dtype=torch.bool)
    return Boxed(image, size, boxes[kept], labels[kept], hard[kept])
