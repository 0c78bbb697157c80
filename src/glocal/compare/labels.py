"""Names cut to the room a picture has, and still tellable apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile


def shortened(names: Sequence[str], most: float) -> list[str]:
    """Shorten names in the middle; where some would look alike, what they share is left out, or they are numbered."""
    room = max(int(most), 2)
    found = [_middle(name, room) for name in names]
    for alike in _alike(found):
        rests = _without_shared([names[i] for i in alike])
        for i, rest in zip(alike, rests, strict=True):
            found[i] = "…" + _middle(rest, room - 1)
    for alike in _alike(found):
        for i in alike:
            number = str(i + 1)
            found[i] = f"{names[i][: max(room - len(number) - 1, 0)]}…{number}"
    return found


def _alike(found: Sequence[str]) -> list[list[int]]:
    """Group the places of texts that stand more than once."""
    return [[i for i, each in enumerate(found) if each == text] for text, count in Counter(found).items() if count > 1]


def _middle(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[len(name) - end :]}"


def _without_shared(names: Sequence[str]) -> list[str]:
    start = _shared(names)
    rests = [name[start:] for name in names]
    end = _shared([rest[::-1] for rest in rests])
    return [rest[: len(rest) - end] for rest in rests]


def _shared(names: Sequence[str]) -> int:
    """Count the letters all names begin with."""
    return sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))
