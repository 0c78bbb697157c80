"""Draw what a detector or a segmenter found over the image."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import torch
from torch import Tensor
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

Colour = tuple[int, int, int]


def palette(count: int) -> list[Colour]:
    """Choose colours that lie far apart, neighbours most of all."""
    hues = [(i * 0.618034) % 1 for i in range(count)]  # the golden ratio spreads any number of hues
    rows = [colorsys.hsv_to_rgb(hue, 0.85, 0.95 if i % 2 else 0.75) for i, hue in enumerate(hues)]
    return [(round(255 * r), round(255 * g), round(255 * b)) for r, g, b in rows]


def draw_boxes(pixels: Tensor, found: dict[str, Tensor], classes: Sequence[str], least: float = 0.5) -> Tensor:
    """Draw boxes with class and score, and masks where there are any, on (3, H, W) bytes."""
    sure = found["scores"] >= least
    boxes, labels, scores = (found[key][sure].cpu() for key in ("boxes", "labels", "scores"))
    if not len(boxes):
        return pixels
    colours = palette(len(classes))
    chosen = [colours[label] for label in labels.tolist()]
    if "masks" in found:
        masks = found["masks"][sure].cpu()
        pixels = draw_segmentation_masks(pixels, (masks[:, 0] if masks.ndim == 4 else masks) > 0.5, 0.5, list(chosen))
    texts = [f"{classes[label]} {score:.2f}" for label, score in zip(labels.tolist(), scores.tolist(), strict=True)]
    width = max(min(pixels.shape[-2:]) // 200, 1)
    return draw_bounding_boxes(
        pixels, boxes, texts, list(chosen), width=width, fill_labels=True, label_colors=[_ink(c) for c in chosen]
    )


def draw_labels(pixels: Tensor, labels: Tensor, classes: Sequence[str], alpha: float = 0.55) -> Tensor:
    """Lay a colour over every pixel's class, on (3, H, W) bytes."""
    masks = torch.stack([labels.cpu() == i for i in range(len(classes))])
    return draw_segmentation_masks(pixels, masks, alpha, list(palette(len(classes))))


def legend(classes: Sequence[str], shown: Sequence[int], height: int) -> Tensor:
    """Make a (3, H, W) strip that names the colours."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=14)
    colours = palette(len(classes))
    width = 30 + max((round(font.getlength(classes[i])) for i in shown), default=0) + 8
    strip = Image.new("RGB", (width, max(height, 20 * len(shown) + 4)), "white")
    pen = ImageDraw.Draw(strip)
    for row, i in enumerate(shown):
        pen.rectangle((6, 20 * row + 5, 22, 20 * row + 19), fill=colours[i])
        pen.text((30, 20 * row + 3), classes[i], fill="black", font=font)
    import numpy as np

    return torch.from_numpy(np.array(strip)).permute(2, 0, 1)


def _ink(colour: Colour) -> str:
    """Choose black or white, whichever is read more easily on the colour."""
    red, green, blue = colour
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"
