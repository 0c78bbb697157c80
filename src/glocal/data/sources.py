"""Where images come from: the digits of scikit-learn, .npz files, folders, and everything timm can open."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glocal.data.decode import parts_to_memory, share_seen
from glocal.data.folders import folder
from glocal.data.images import (
    FileImages,
    Images,
    MemoryImages,
    Pair,
    StreamImages,
    few,
    holdout,
    with_channels,
)
from glocal.data.npz import npz, statistics
from glocal.data.settings import DataSettings
from glocal.data.splits import TRAIN, VAL
from glocal.data.stream import open_stream
from glocal.errors import GlocalError, nearest

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def load(settings: DataSettings, seed: int = 0) -> Pair:
    """Open a data set and part it into training and validation images."""
    name = settings.name
    if name in NAMED:
        pair = NAMED[name](settings)
    elif name.split("/")[0] in ("wds", "hfids"):
        parts = ((settings.train_split or "train", True), (settings.eval_split or "validation", False))
        train, val = (open_stream(settings, split, training, seed) for split, training in parts)
        return Pair(train, val)
    elif "/" in name and name.split("/")[0] in ("torch", "hfds", "tfds"):
        pair = _timm(name, settings)
    elif _is_place(name):
        pair = _npz_pair(Path(name), settings, seed) if _holds_npz(Path(name)) else _folder_pair(settings, seed)
    else:
        raise GlocalError(
            f"data {name!r} is neither a folder, an .npz file, nor a known set.{nearest(name, NAMED)} "
            f"Known sets: {', '.join(NAMED)}, and timm's torch/…, hfds/…, wds/…"
        )
    _check(pair, name)
    pair = _limited(pair, settings.limit, seed)
    return replace(pair, notes=pair.notes + _without_images(pair))


def load_measured(settings: DataSettings) -> Pair:
    """Open images to measure on, which are both parts: those for validation, or all where nothing parts them."""
    if settings.name in NAMED or not _is_place(settings.name):
        pair = load(settings)
        return Pair(pair.val, pair.val, pair.notes)
    place = Path(settings.name)
    part = validation_part(place)
    images, notes = _whole(part or place)
    told = f"measured on all {len(images)} images of {part or place}" + (", its validation part" if part else "")
    return Pair(images, images, (told, *notes, *_without_images(Pair(images, images))))


def validation_part(place: Path) -> Path | None:
    """Find the validation part of a folder; an .npz file is meant as it is, whatever lies beside it."""
    if not place.is_dir():
        return None
    if _part(place, VAL, ".npz"):
        return _part(place, VAL, ".npz")
    folders = [each.name for each in os.scandir(place) if each.is_dir() and not each.name.startswith(".")]
    # Beside folders other than `train`, a folder `test` is a class like any other.
    return _part(place, VAL) if len(folders) == 1 or _part(place, TRAIN) else None


def _whole(place: Path) -> tuple[MemoryImages | FileImages, tuple[str, ...]]:
    stored = _part(place, TRAIN, ".npz") if place.is_dir() else place
    if stored is not None and stored.suffix == ".npz":
        return npz(stored), ()
    return folder(_part(place, TRAIN) or place)


def _is_place(name: str) -> bool:
    return bool(name) and (name.endswith((".npz", ".tar")) or Path(name).is_dir())


def digits(settings: DataSettings | None = None) -> Pair:
    """Load the 1,797 handwritten 8x8 digits that come with scikit-learn; the last quarter is held out."""
    from sklearn.datasets import load_digits

    raw: Any = load_digits()
    pixels = torch.from_numpy((raw.images * (255 / 16)).round().astype(np.uint8))[:, None]  # (N, 1, 8, 8)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    # The set runs from writer to writer: its end was written by hands that the training part hardly knows. Nothing is
    # chosen by it; benchmarks/digits_choice.py chooses on parts of the training images alone.
    train, val = torch.arange(len(labels)).tensor_split([len(labels) * 3 // 4])
    images = MemoryImages(
        pixels, labels, tuple(str(i) for i in range(10)), *statistics(pixels[train].permute(0, 2, 3, 1).numpy())
    )
    return Pair(images.take(train), images.take(val))


def _holds_npz(path: Path) -> bool:
    return path.suffix == ".npz" or (path.is_dir() and _part(path, TRAIN, ".npz") is not None)


def _part(folder: Path, names: tuple[str, ...], suffix: str = "") -> Path | None:
    return next((folder / (name + suffix) for name in names if (folder / (name + suffix)).exists()), None)


def _npz_pair(path: Path, settings: DataSettings, seed: int) -> Pair:
    train_file = _part(path, TRAIN, ".npz") if path.is_dir() else path
    val_file = (
        _part(path if path.is_dir() else path.parent, VAL, ".npz") if path.is_dir() or path.stem in TRAIN else None
    )
    assert train_file is not None
    train = npz(train_file)
    if val_file is None:
        return _held_out(train, settings, seed)
    train, val = _named_alike(train, npz(val_file))
    if val.classes != train.classes:
        names = few(sorted(set(train.classes) ^ set(val.classes))) or "the same in another order"
        raise GlocalError(
            f"{train_file.name} has {len(train.classes)} classes and {val_file.name} has {len(val.classes)}; "
            f"they differ in {names}. Both need the same `classes`, in one order; one file alone may name them."
        )
    val = with_channels(val, train.pixels.shape[1])
    return Pair(train, replace(val, mean=train.mean, std=train.std))


def _named_alike(train: MemoryImages, val: MemoryImages) -> tuple[MemoryImages, MemoryImages]:
    """Give the classes of a part that only numbers them, or has no image of the last ones, the names of the other."""
    numbered = [part.classes == tuple(map(str, range(len(part.classes)))) for part in (train, val)]
    if numbered[1] and len(val.classes) <= len(train.classes):
        return train, replace(val, classes=train.classes)
    if numbered[0] and len(train.classes) <= len(val.classes):
        return replace(train, classes=val.classes), val
    return train, val


def _held_out(images: MemoryImages | FileImages, settings: DataSettings, seed: int) -> Pair:
    train, val = holdout(images.labels, settings.holdout, seed=0)
    note = f"no validation part: {len(val)} of {len(images)} images are held out, each class in proportion"
    return Pair(images.take(train), images.take(val), (note,))


def _folder_pair(settings: DataSettings, seed: int) -> Pair:
    root = Path(settings.name)
    train_root = _part(root, TRAIN) or root
    val_root = _part(root, VAL) if train_root != root else None
    train, notes = folder(train_root)
    if val_root is None:
        pair = _held_out(train, settings, seed)
        return Pair(pair.train, pair.val, notes + pair.notes)
    val, more = folder(val_root)
    if val.classes != train.classes:
        missing = sorted(set(train.classes) ^ set(val.classes))
        raise GlocalError(
            f"{train_root} has {len(train.classes)} classes and {val_root} has {len(val.classes)}; "
            f"only one of them has {few(missing)}. Both need the same class folders."
        )
    return Pair(train, val, notes + more)


def _timm(name: str, settings: DataSettings, statistics: tuple[Any, Any] | None = None) -> Pair:
    from timm.data import create_dataset

    root = settings.root or ("data" if name.startswith("torch/") else None)  # torchvision has no place of its own

    def part(split: str) -> FileImages:
        try:
            dataset: Any = create_dataset(
                name, root=root, split=split, is_training=split == "train", download=settings.download
            )
            labels = _targets(dataset)
        except Exception as error:  # whatever the makers of so many sets raise
            told = str(error).rstrip(".") or type(error).__name__
            raise GlocalError(
                f"data {name!r} cannot be opened in {root or 'its usual place'}: {told}. Give its folder with --data, "
                f"or fetch it with --set data.download=true."
            ) from error
        classes = getattr(dataset, "classes", None) or [str(i) for i in range(int(labels.max()) + 1)]
        extra = {} if statistics is None else {"mean": statistics[0], "std": statistics[1]}
        return FileImages(dataset, labels, tuple(map(str, classes)), torch.arange(len(labels)), **extra)

    return Pair(part(settings.train_split or "train"), part(settings.eval_split or "validation"))


def _targets(dataset: Any) -> Tensor:
    if hasattr(dataset, "targets"):
        return torch.as_tensor(dataset.targets)
    reader = dataset.reader
    if hasattr(reader, "samples"):
        return torch.tensor([int(sample[1]) for sample in reader.samples])
    return torch.as_tensor(reader.dataset[reader.label_key])


def _cifar(name: str, statistics: tuple[Any, Any]) -> Callable[[DataSettings], Pair]:
    def open_it(settings: DataSettings) -> Pair:
        root = Path(settings.root or "data")
        if (root / "train.npz").is_file():
            pair = _npz_pair(root, settings, 0)
        elif (root / name / "train.npz").is_file():
            pair = _npz_pair(root / name, settings, 0)
        else:
            return _timm(f"torch/{name}", settings, statistics)
        assert isinstance(pair.train, MemoryImages) and isinstance(pair.val, MemoryImages)
        train, val = (replace(part, mean=statistics[0], std=statistics[1]) for part in (pair.train, pair.val))
        return Pair(train, val)

    return open_it


NAMED: dict[str, Callable[[DataSettings], Pair]] = {
    "digits": digits,
    "cifar10": _cifar("cifar10", CIFAR10),
    "cifar100": _cifar("cifar100", CIFAR100),
}


def _check(pair: Pair, name: str) -> None:
    if len(pair.train.classes) < 2:
        raise GlocalError(f"{name} has {len(pair.train.classes)} class; there is nothing to tell apart.")
    if not len(pair.train) or not len(pair.val):
        raise GlocalError(
            f"{name} has {len(pair.train)} training and {len(pair.val)} validation images; both are needed. "
            f"Give each class two images or more, or a part for validation."
        )


def _without_images(pair: Pair) -> tuple[str, ...]:
    """Name classes that a part has no image of: their accuracy would read as 0 %, and nobody would know why."""
    if isinstance(pair.train, StreamImages) or isinstance(pair.val, StreamImages):
        return ()
    learned, measured = (set(part.labels.unique().tolist()) for part in (pair.train, pair.val))
    names = dict(enumerate(pair.train.classes))
    kinds = {
        "no image at all": names.keys() - learned - measured,
        "no training image": (names.keys() - learned) & measured,
        "no validation image": (names.keys() - measured) & learned,
    }
    told = "their accuracy is shown as 0 %"
    return tuple(
        f"{text} of class {few([names[i] for i in sorted(which)])}: {told}" for text, which in kinds.items() if which
    )


def _limited(pair: Pair, limit: int | None, seed: int) -> Pair:
    if limit is None or limit >= len(pair.train) or isinstance(pair.train, StreamImages):
        return pair
    chosen = torch.randperm(len(pair.train), generator=torch.Generator().manual_seed(seed))[:limit]
    return Pair(pair.train.take(chosen), pair.val, pair.notes)


def in_memory(pair: Pair, settings: DataSettings, size: tuple[int, int]) -> Pair:
    """Bring images to one size and keep them as bytes, where the settings ask for it or the set is small."""
    if not fits(pair, settings, size):
        return pair
    (train, val), notes = parts_to_memory(
        [(pair.train, 1.0), (pair.val, share_seen(settings, size))], size, settings.unreadable
    )
    return Pair(train, val, pair.notes + notes)


def fits(pair: Pair, settings: DataSettings, size: tuple[int, int]) -> bool:
    """Tell whether images are kept in memory."""
    parts: tuple[Images, ...] = (pair.train, pair.val)
    if any(isinstance(part, StreamImages) for part in parts):
        return False
    if not any(isinstance(part, FileImages) for part in parts) or settings.memory == "yes":
        return True
    pixels = sum(len(part) for part in parts) * size[0] * size[1] * 3
    return settings.memory == "auto" and max(size) <= 96 and pixels <= 2**31
