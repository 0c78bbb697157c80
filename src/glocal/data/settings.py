"""What a run says about its data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Literal, cast

from glocal.data.check import Check, SettingsError
from glocal.data.dense import Dense
from glocal.data.questions import Vqa
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
        check = Check(self, "data.augment")
        check.between(0, 1, "flip", "erase", why="a chance lies")
        check.at_least(0, "padding", "jitter")
        for name, most in (("scale", 1.0), ("ratio", float("inf"))):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most or not isfinite(high):
                limit = ", at most 1" if name == "scale" else ""
                check.refuse(
                    f"data.augment.{name} is {(low, high)}; it takes the smaller number first, above 0{limit}.", name
                )
        check.done()


_DEIT = Augment("resized", flip=0.5, rand="rand-m9-mstd0.5-inc1", jitter=0.4, erase=0.25)
PRESETS: dict[str, Augment] = {
    "none": Augment(),
    "shift": Augment("pad", padding=1),  # for digits and other signs, which must not be mirrored
    "light": Augment("pad", flip=0.5),
    "crop": Augment("resized", flip=0.5),
    "deit": _DEIT,
    "deit_small": replace(_DEIT, crop="pad"),  # the authors' form for 32 pixels
}


def augment(value: Any) -> Augment:
    """Read an augmentation: a preset's name, or options, which may start from one: {preset: deit, flip: 0}."""
    if isinstance(value, str):
        return _preset(value)
    if not isinstance(value, dict):
        raise GlocalError(
            f"data.augment is {value!r}; it takes {', '.join(PRESETS)}, or options such as {{preset: deit, flip: 0}}."
        )
    given = dict(cast("dict[str, Any]", value))
    base = _preset(given.pop("preset", "none"))
    ready, check = dict[str, Any](), Check(None, "data.augment")
    known = [each.name for each in fields(Augment)]
    for key, each in given.items():
        if key not in known:
            told = f"unknown key {key!r} in data.augment.{nearest(str(key), known)} It takes: {', '.join(known)}."
            check.refuse(told, str(key))
            continue
        fits, ready[key], wanted = _fitted(key, each)
        if not fits:
            del ready[key]
            check.refuse(f"data.augment.{key} is {each!r}; it takes {wanted}.", key)
    try:
        made = replace(base, **ready)
    except SettingsError as error:
        raise SettingsError([*check.faults, *error.faults]) from None
    check.done()
    return made


def _preset(name: Any) -> Augment:
    if not isinstance(name, str) or name not in PRESETS:
        near = nearest(str(name), PRESETS)
        raise SettingsError([(("data.augment",), f"unknown augmentation {name!r}.{near} There are: {_LISTED}.")])
    return PRESETS[name]


_LISTED = ", ".join(PRESETS)
_WORDS = {
    "crop": ("none", "pad", "resized"),
    "interpolation": ("bicubic", "bilinear", "nearest", "box", "hamming", "lanczos", "random"),
}


def _fitted(key: str, value: Any) -> tuple[bool, Any, str]:
    """Tell whether an option is of its kind, what it becomes, and what the kind is called."""
    if key in _WORDS:
        return value in _WORDS[key], value, ", ".join(_WORDS[key])
    if key == "rand":
        return value is None or isinstance(value, str), value, "a word such as rand-m9-mstd0.5-inc1"
    if key == "padding":
        return isinstance(value, int) and not isinstance(value, bool), value, "a whole number"
    if key in ("scale", "ratio"):
        pair = [_number(each) for each in cast("list[Any]", value)] if isinstance(value, (list, tuple)) else []
        return len(pair) == 2 and None not in pair, tuple(pair), "two numbers, such as [0.5, 1.0]"
    return _number(value) is not None, _number(value), "a number"


def _number(value: Any) -> float | None:
    try:  # YAML reads 5e-1 as a word
        return float(value) if isinstance(value, str) else None if isinstance(value, bool) else value + 0
    except (TypeError, ValueError):
        return None


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
    vqa: Vqa | None = None
    """For questions about images; its own defaults when not given."""

    def __post_init__(self) -> None:
        check = Check(self, "data")
        check.at_least(1, "size", "batch_size", "eval_batch_size", "repeats", "classes", "limit")
        check.at_least(0, "workers", "unreadable")
        for name in ("holdout", "crop_pct"):
            value: float | None = getattr(self, name)
            if value is not None and not (0 < value < 1 or (value == 1 and name == "crop_pct")):
                check.refuse(f"data.{name} is {value}; a share lies between 0 and 1.", name)
        check.done()
