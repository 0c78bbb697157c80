"""What a run remembers of its images, so that a resume with others is noticed."""

from __future__ import annotations

import zlib
from typing import Any

from glocal.data.dense import DensePair
from glocal.data.images import Pair
from glocal.data.questions import QuestionPair


def facts(pair: Pair | DensePair | QuestionPair) -> dict[str, int]:
    """Count the images of both parts and the classes, and sum up which image is of which class."""
    parts: tuple[Any, Any] = (pair.train, pair.val)
    summed = zlib.crc32("\n".join(pair.train.classes).encode(errors="surrogateescape"))
    for part in parts:
        labels = getattr(part, "labels", None)  # a stream has none, and boxes are many
        summed = summed if labels is None else zlib.crc32(labels.cpu().numpy().tobytes(), summed)
    counts = {"training images": len(pair.train), "validation images": len(pair.val)}
    return counts | {"classes": len(pair.train.classes), "checksum of labels": summed}
