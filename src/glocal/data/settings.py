"""What a run says about its data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from glocal.data.dense import Dense
from glocal.errors import GlocalError, nearest


@dataclass(frozen=True)
class Augment:
    """How training images are changed. All of it is drawn from (seed, epoch, image), so it can be drawn again."""

    crop: Literal["none", "pad", "resized"] = "none"
    """`pad`: shift by up to `padding` pixels; `resized`: a part of the area, brought back to size."""
    padding: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.0
    rand: str | None = None
    """RandAugment as timm writes it, such as rand-m9-mstd0.5-inc1."""
    jitter: float = 0.0
    """Colour jitter; as in timm, RandAugment takes its place."""
    erase: float = 0.0
    """Chance of random erasing."""
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise GlocalError(f"augment.{name} is {getattr(self, name)}; a chance lies between 0 and 1.")
        if self.padding < 0:
            raise GlocalError(f"augment.padding is {self.padding}; it cannot be negative.")


_DEIT = Augment("resized", flip=0.5, rand="rand-m9-mstd0.5-inc1", jitter=0.4, erase=0.25)
PRESETS: dict[str, Augment] = {
    "none": Augment(),
    "shift": Augment("pad", padding=1),  # for digits and other signs, which must not be mirrored
    "light": Augment("pad", flip=0.5),
    "crop": Augment("resized", flip=0.5),
    "deit": _DEIT,
    "deit_small": replace(_DEIT, crop="pad"),  # the authors' form for 32 pixels
}


def augment(value: str | dict[str, Any]) -> Augment:
    """Read an augmentation: a preset's name, or options, which may start from one: {preset: deit, flip: 0}."""
    if isinstance(value, str):
        return _preset(value)
    given = dict(value)
    base = _preset(given.pop("preset", "none"))
    known = [each.name for each in fields(Augment)]
    for key in given:
        if key not in known:
            raise GlocalError(f"unknown key {key!r} in augment.{nearest(key, known)} It takes: {', '.join(known)}.")
    return replace(base, **{key: tuple(v) if isinstance(v, list) else v for key, v in given.items()})


def _preset(name: str) -> Augment:
    if name not in PRESETS:
        raise GlocalError(f"unknown augmentation {name!r}.{nearest(name, PRESETS)} There are: {', '.join(PRESETS)}.")
    return PRESETS[name]


@dataclass(frozen=True)
class DataSettings:
    """The images: where they lie, their size, and how batches are made of them."""

    name: str = "digits"
    """digits, a folder, an .npz file, cifar10, cifar100, or any name timm's create_dataset takes (hfds/…, wds/…)."""
    root: str | None = None
    """Folder of a named set."""
    size: int | tuple[int, int] | None = None
    """Side the images are brought to; the host's own when not given."""
    batch_size: int = 128
    """Images per optimiser step, over all processes."""
    eval_batch_size: int | None = None
    augment: Augment = Augment()
    repeats: int = 1
    """Repeated augmentation: how often each image of an epoch's share appears; DeiT uses 3."""
    holdout: float = 0.2
    """Share held out for validation where the set has no validation part."""
    crop_pct: float | None = None
    """How much of the image evaluation sees."""
    memory: Literal["auto", "yes", "no"] = "auto"
    """Keep all images on the device: for small sets of small images."""
    workers: int = 4
    train_split: str | None = None
    eval_split: str | None = None
    classes: int | None = None
    """Number of classes of a stream (wds/…, hfids/…), which cannot be counted beforehand."""
    download: bool = False
    unreadable: int = 10
    """How many unreadable images are skipped before the run stops."""
    limit: int | None = None
    """Use only the first so many training images of a seeded shuffle."""
    dense: Dense = field(default_factory=Dense)
    """For images with boxes or label maps."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("repeats", 1), ("workers", 0), ("unreadable", 0)):
            if getattr(self, name) < least:
                raise GlocalError(f"data.{name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 < self.holdout < 1:
            raise GlocalError(f"data.holdout is {self.holdout}; a share lies between 0 and 1.")
