"""What people write on a command line or a page, read and checked before any model runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glocal.errors import GlocalError, nearest
from glocal.explain.methods import Ask
from glocal.explain.picture import read_picture
from glocal.explain.rollout import FUSIONS, Fusion
from glocal.explain.show import Picture


def ask_for(
    fusion: str = "mean",
    discard: float = 0.0,
    layer: int | None = None,
    head: int | None = None,
    place: str | None = None,
    threshold: float = 0.0,
    target: int | None = None,
    labels: Path | None = None,
    boxes: Sequence[str] = (),
) -> Ask:
    """Check what is asked for."""
    for name, value in (("discard", discard), ("threshold", threshold)):
        if not 0 <= value < 1:
            raise GlocalError(f"{name} is {value}; it is a share, from 0 up to below 1.")
    named = tuple(_box(each) for each in boxes)
    where = None if place is None else _place(place)
    return Ask(_fusion(fusion), discard, layer, head, where, threshold, target, labels, named)


def open_pictures(paths: Sequence[Path]) -> list[Picture]:
    """Read images; two of one name are told apart by number."""
    stems = [path.stem for path in paths]
    names = [f"{stem}-{stems[: i + 1].count(stem)}" if stems.count(stem) > 1 else stem for i, stem in enumerate(stems)]
    return [Picture(name, read_picture(path)) for name, path in zip(names, paths, strict=True)]


def _fusion(text: str) -> Fusion:
    for known in FUSIONS:
        if text == known:
            return known
    raise GlocalError(f"head fusion {text!r} is not known.{nearest(text, FUSIONS)} Use {', '.join(FUSIONS)}.")


def _place(text: str) -> tuple[float, float]:
    try:
        row, column = (float(part) for part in text.split(","))
    except ValueError:
        raise GlocalError(f"place {text!r} is not understood. Write ROW,COLUMN from 0 to 1, such as 0.5,0.5.") from None
    if not (0 <= row <= 1 and 0 <= column <= 1):
        raise GlocalError(f"place {text!r} is not on the image. Rows and columns run from 0 to 1.")
    return row, column


def _box(text: str) -> tuple[str, tuple[float, float, float, float]]:
    name, colon, numbers = text.rpartition(":")
    try:
        left, top, right, bottom = (float(part) for part in numbers.split(","))
    except ValueError:
        colon = ""
        left = top = right = bottom = 0.0
    if not colon or not name:
        raise GlocalError(f"box {text!r} is not understood. Write NAME:LEFT,TOP,RIGHT,BOTTOM in pixels.")
    if right <= left or bottom <= top:
        raise GlocalError(f"box {text!r} has no area; right must be beyond left, and bottom below top.")
    return name, (left, top, right, bottom)
