"""Tiny sets with boxes and label maps, made on the spot: bright blocks on dark noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}


def scene(index: int, height: int = 64, width: int = 64) -> tuple[np.ndarray, list[tuple[str, list[int]]]]:
    """Draw a block of each colour somewhere; return pixels, and names with corners."""
    draw = np.random.default_rng(index)
    pixels = draw.integers(0, 60, (height, width, 3), dtype=np.uint8)
    things: list[tuple[str, list[int]]] = []
    for i, (name, colour) in enumerate(COLOURS.items()):
        side = int(draw.integers(16, 25))
        left = int(draw.integers(0, width // 2 - side)) + i * width // 2
        top = int(draw.integers(0, height - side))
        pixels[top : top + side, left : left + side] = colour
        things.append((name, [left, top, left + side, top + side]))
    return pixels, things


def write_voc(root: Path, train: int = 8, val: int = 4) -> Path:
    """Write a VOC folder."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for index in range(train + val):
        pixels, things = scene(index)
        Image.fromarray(pixels).save(root / "JPEGImages" / f"{index:03}.png")
        write_xml(root / "Annotations" / f"{index:03}.xml", things)
    for name, span in (("train", range(train)), ("val", range(train, train + val))):
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{i:03}\n" for i in span))
    return root


def write_xml(path: Path, things: list[tuple[str, list[int]]], difficult: int = 0) -> None:
    """Write one image's objects; VOC counts pixels from 1."""
    objects = ""
    for name, (x1, y1, x2, y2) in things:
        box = f"<xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        objects += f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{box}</bndbox></object>"
    path.write_text(f"<annotation>{objects}</annotation>")


def write_coco(root: Path, train: int = 8, val: int = 4) -> Path:
    """Write COCO's layout, with outlines."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for part, span in (("train", range(train)), ("val", range(train, train + val))):
        (root / f"{part}2017").mkdir(exist_ok=True)
        images, annotations = [], []
        for index in span:
            pixels, things = scene(index)
            Image.fromarray(pixels).save(root / f"{part}2017" / f"{index:03}.png")
            images.append({"id": index, "file_name": f"{index:03}.png", "height": 64, "width": 64})
            for name, (x1, y1, x2, y2) in things:
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": index,
                        "category_id": 3 if name == "red" else 7,
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "area": (x2 - x1) * (y2 - y1),
                        "iscrowd": 0,
                        "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]],
                    }
                )
        categories = [{"id": 3, "name": "red"}, {"id": 7, "name": "blue"}]
        whole = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(whole))
    return root


def write_camvid(root: Path, train: int = 8, val: int = 4) -> Path:
    """Write CamVid's layout: ground, red, blue; 3 is ignored."""
    for part, span in (("train", range(train)), ("val", range(train, train + val))):
        for folder in (part, f"{part}annot"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        for index in span:
            pixels, things = scene(index)
            labels = np.zeros(pixels.shape[:2], dtype=np.uint8)
            for name, (x1, y1, x2, y2) in things:
                labels[y1:y2, x1:x2] = 1 + list(COLOURS).index(name)
            labels[:2] = 3
            Image.fromarray(pixels).save(root / part / f"{index:03}.png")
            Image.fromarray(labels).save(root / f"{part}annot" / f"{index:03}.png")
    facts = {"classes": ["ground", "red", "blue", "void"], "ignore_index": 3}
    (root / "classes.json").write_text(json.dumps(facts))
    return root
