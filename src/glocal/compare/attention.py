"""Where each variant looks: attention rolled out over a few validation images, drawn over them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from glocal.data.augment import Augmenter
from glocal.data.decode import to_memory
from glocal.data.images import MemoryImages, Pair, StreamImages
from glocal.data.settings import Augment
from glocal.errors import GlocalError
from glocal.explain.draw import large, overlay
from glocal.explain.look import Look
from glocal.explain.methods import density
from glocal.explain.rollout import RollOut, looked_at
from glocal.explain.watch import watch
from glocal.store import load

Strip = tuple[str, list[str]]  # a name, and pictures as data addresses


def strips(models: dict[str, Path], pair: Pair, size: tuple[int, int], count: int = 8) -> list[Strip]:
    """Draw some images, and what each saved model looks at in them; a model without attention is left out."""
    if isinstance(pair.val, StreamImages):
        return []
    chosen = _one_of_each(pair.val.labels, count)
    images, _ = to_memory(pair.val.take(chosen), size, len(chosen))
    pictures = [large(_picture(pixels), 112) for pixels in images.pixels]
    looked: dict[str, Tensor] = {}
    for name, file in models.items():
        with suppress(GlocalError):
            looked[name] = _maps(load(file), images)
    found: list[Strip] = [("image", [_address(each) for each in pictures])]
    # One scale for all models of an image, or their maps could not be compared.
    scales = [_scale([density(maps[i]) for maps in looked.values()]) for i in range(len(pictures) if looked else 0)]
    for name, maps in looked.items():
        drawn = [overlay(p, density(m), *scale) for p, m, scale in zip(pictures, maps, scales, strict=True)]
        found.append((name, [_address(each) for each in drawn]))
    return found if looked else []


def _scale(maps: Sequence[Tensor]) -> tuple[float, float]:
    return min(float(each.min()) for each in maps), max(float(each.max()) for each in maps)


def _maps(model: nn.Module, images: MemoryImages) -> Tensor:
    roll = RollOut()

    def add(look: Look) -> None:
        if look.group == "self":
            roll.add(look.square, look.queries)

    batch = Augmenter(Augment(), images.mean, images.std).normalise(images.pixels)
    with torch.no_grad(), watch(model.eval(), heads="mean", each=add):
        model(batch)
    if roll.first is None:
        raise GlocalError("the model's tokens sit on no lattice, so there is no map to draw.")
    return looked_at(roll.flow, roll.first, last=roll.lattice)


def _one_of_each(labels: Tensor, count: int) -> Tensor:
    """Take the first image of each class, then the second, until there are enough."""
    seen: dict[int, int] = {}
    ranked: list[tuple[int, int]] = []
    for index, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, -1) + 1
        ranked.append((seen[label], index))
    return torch.tensor([index for _, index in sorted(ranked)[:count]])


def _picture(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).expand(-1, -1, 3).contiguous().numpy())


def _address(picture: Image.Image, side: int = 112) -> str:
    how = Image.Resampling.NEAREST if max(picture.size) < side else Image.Resampling.LANCZOS
    buffer = io.BytesIO()
    picture.convert("RGB").resize((side, side), how).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def drawn(found: Sequence[Strip]) -> str:
    """Lay the strips out as HTML."""
    from html import escape

    rows = ""
    for name, pictures in found:
        cells = "".join(f'<td><img alt="{escape(name)}" src="{each}"></td>' for each in pictures)
        rows += f"<tr><td>{escape(name)}</td>{cells}</tr>"
    return f"<div class=scroll><table class=looks>{rows}</table></div>"
