"""ImageNet's classes, and which of them the folders of ImageNet-1k, -V2 and -A hold.

Recht et al., "Do ImageNet Classifiers Generalize to ImageNet?" (V2);
Hendrycks et al., "Natural Adversarial Examples" (A).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from glocal.data.images import few
from glocal.errors import GlocalError

_WNID = re.compile(r"n\d{8}")


@cache
def wnids() -> tuple[str, ...]:
    """Give the wordnet ids of the 1,000 classes, in the order every ImageNet-1k model has them."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def places(classes: Sequence[str], name: str) -> tuple[int, ...] | None:
    """Tell which of ImageNet-1k each class is, by wordnet id or by number; nothing where classes are named otherwise.

    Wordnet ids may be of some classes only, as in ImageNet-A; numbers must be of all, as in ImageNet-V2.
    """
    if all(_WNID.fullmatch(each) for each in classes):
        known = {wnid: place for place, wnid in enumerate(wnids())}
        if unknown := [each for each in classes if each not in known]:
            raise GlocalError(
                f"{len(unknown)} of {len(classes)} classes of {name} are none of ImageNet-1k: {few(unknown)}. "
                f"Take their folders away, or give images of its classes."
            )
        return tuple(known[each] for each in classes)
    if not all(each.isdecimal() for each in classes):
        return None
    if lacking := [each for each in map(str, range(len(wnids()))) if each not in classes]:
        raise GlocalError(
            f"{name} has {len(classes)} classes named by numbers, ImageNet-V2 has 0 to 999; there are no images of "
            f"{few(lacking)}. Unpack it again, or name folders by wordnet ids to measure some classes only."
        )
    return tuple(map(int, classes)) if len(classes) == len(wnids()) else None
