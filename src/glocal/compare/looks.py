"""What the variants look at, for the report: roll-outs of a few validation images and entropy by layer."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from html import escape
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from glocal.compare.run import Comparison, place_of
from glocal.data.images import FileImages, MemoryImages, Pair
from glocal.errors import GlocalError
from glocal.explain.methods import Ask
from glocal.explain.show import Picture, make
from glocal.explain.subject import Subject, open_subject

MOST = 5  # variants in a picture: more would be too small to see


def looks(comparison: Comparison, folder: Path, pair: Pair, count: int = 3) -> str:
    """Draw each variant's first run as HTML; where a model has no attention, say so."""
    try:
        subjects = _subjects(comparison, folder)
        pictures = samples(pair.val, count)
        shown = [each for method in ("rollout", "entropy") for each in make(method, subjects, pictures, Ask())]
    except GlocalError as error:
        return f"<p class=small>No pictures of attention: {escape(str(error))}</p>"
    left = len(comparison.plan.variants) - len(subjects)
    note = f"The first seed's runs{f', the first {MOST} variants' if left > 0 else ''}; each row has one scale. "
    return "".join(_image(each.figure, each.name) for each in shown) + (
        f"<p class=small>{note}Roll-out follows attention from the last layer to the image. Entropy is high where "
        f"attention is dense; uniform attention reaches the dashed line.</p>"
    )


def samples(images: object, count: int) -> list[Picture]:
    """Take the first image of each of the first classes."""
    if not isinstance(images, (MemoryImages, FileImages)):
        raise GlocalError("the images come as a stream, of which none can be picked.")
    found: dict[int, int] = {}
    for index, label in enumerate(images.labels.tolist()):
        found.setdefault(label, index)
    chosen = sorted(found.items())[:count]
    return [Picture(images.classes[label], _picture(images, index)) for label, index in chosen]


def _picture(images: MemoryImages | FileImages, index: int) -> Image.Image:
    if isinstance(images, FileImages):
        return images.dataset[int(images.chosen[index])][0].convert("RGB")
    pixels = images.pixels[index].permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")


def _subjects(comparison: Comparison, folder: Path) -> list[Subject]:
    seed = comparison.plan.seeds[0]
    variants = comparison.plan.variants[:MOST]
    return [replace(open_subject(str(place_of(folder, each, seed))), name=each.name) for each in variants]


def _image(figure: Figure, name: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    coded = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{escape(name)}" style="max-width:100%" src="data:image/png;base64,{coded}">'
