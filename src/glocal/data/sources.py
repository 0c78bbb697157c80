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

from glocal.data.decode import to_memory
from glocal.data.images import FileImages, MemoryImages, Pair, StreamImages, few, holdout
from glocal.data.settings import DataSettings
from glocal.data.stream import open_stream
from glocal.errors import GlocalError, nearest

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_TRAIN = ("train", "training")
_VAL = ("val", "valid", "validation", "eval", "test")


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
    elif name.endswith(".npz") or name.endswith(".tar") or Path(name).is_dir():
        pair = _npz_pair(Path(name), settings, seed) if _holds_npz(Path(name)) else _folder_pair(settings, seed)
    else:
        raise GlocalError(
            f"data {name!r} is neither a folder, an .npz file, nor a known set.{nearest(name, NAMED)} "
            f"Known sets: {', '.join(NAMED)}, and timm's torch/…, hfds/…, wds/…"
        )
    _check(pair, name)
    return _limited(pair, settings.limit, seed)


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
        pixels, labels, tuple(str(i) for i in range(10)), *_statistics(pixels[train].permute(0, 2, 3, 1).numpy())
    )
    return Pair(images.take(train), images.take(val))


def npz(path: Path) -> MemoryImages:
    """Read `images` (N, H, W, 3) uint8 and `labels` (N,), and `classes` where they are named."""
    if not path.is_file():
        raise GlocalError(f"{path} does not exist.")
    try:
        with np.load(path, allow_pickle=False) as file:
            names = {name: file[name] for name in ("images", "labels", "classes") if name in file.files}
            found = file.files
    except (OSError, ValueError, EOFError) as error:
        raise GlocalError(f"{path} cannot be read as .npz: {error}") from None
    if "images" not in names or "labels" not in names:
        raise GlocalError(f"{path} holds {', '.join(found) or 'nothing'}; it needs `images` and `labels`.")
    pixels, labels = names["images"], names["labels"]
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise GlocalError(f"{path}: images are {pixels.dtype} {pixels.shape}; wanted uint8 (N, H, W, 3) or (N, H, W).")
    if len(labels) != len(pixels):
        raise GlocalError(f"{path}: {len(pixels)} images but {len(labels)} labels.")
    count = int(labels.max()) + 1 if len(labels) else 0
    classes = tuple(str(each) for each in names.get("classes", range(count)))
    if len(classes) < count or (len(labels) and int(labels.min()) < 0):
        raise GlocalError(
            f"{path}: labels run from {labels.min()} to {labels.max()}, but there are {len(classes)} classes."
        )
    mean, std = _statistics(pixels)
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return MemoryImages(tensor, torch.from_numpy(labels.astype(np.int64)), classes, mean, std)


def _statistics(pixels: np.ndarray[Any, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    some = pixels[:: max(len(pixels) // 5000, 1)].astype(np.float32) / 255
    mean, std = some.mean(axis=(0, 1, 2)), some.std(axis=(0, 1, 2))
    return tuple(round(float(m), 4) for m in mean), tuple(round(max(float(s), 1e-3), 4) for s in std)


def _holds_npz(path: Path) -> bool:
    return path.suffix == ".npz" or (path.is_dir() and _part(path, _TRAIN, ".npz") is not None)


def _part(folder: Path, names: tuple[str, ...], suffix: str = "") -> Path | None:
    return next((folder / (name + suffix) for name in names if (folder / (name + suffix)).exists()), None)


def _npz_pair(path: Path, settings: DataSettings, seed: int) -> Pair:
    train_file = _part(path, _TRAIN, ".npz") if path.is_dir() else path
    val_file = (
        _part(path if path.is_dir() else path.parent, _VAL, ".npz") if path.is_dir() or path.stem in _TRAIN else None
    )
    assert train_file is not None
    train = npz(train_file)
    if val_file is None:
        return _held_out(train, settings, seed)
    val = npz(val_file)
    if val.classes != train.classes:
        raise GlocalError(f"{train_file.name} has {len(train.classes)} classes, {val_file.name} {len(val.classes)}.")
    return Pair(train, MemoryImages(val.pixels, val.labels, train.classes, train.mean, train.std))


def _held_out(images: MemoryImages | FileImages, settings: DataSettings, seed: int) -> Pair:
    train, val = holdout(images.labels, settings.holdout, seed=0)
    note = f"no validation part: {len(val)} of {len(images)} images are held out, each class in proportion"
    return Pair(images.take(train), images.take(val), (note,))


def _folder_pair(settings: DataSettings, seed: int) -> Pair:
    root = Path(settings.name)
    train_root = _part(root, _TRAIN) or root
    val_root = _part(root, _VAL) if train_root != root else None
    train, notes = _folder(train_root)
    if val_root is None:
        pair = _held_out(train, settings, seed)
        return Pair(pair.train, pair.val, notes + pair.notes)
    val, more = _folder(val_root)
    if val.classes != train.classes:
        missing = sorted(set(train.classes) ^ set(val.classes))
        raise GlocalError(
            f"{train_root} has {len(train.classes)} classes and {val_root} has {len(val.classes)}; "
            f"only one of them has {few(missing)}. Both need the same class folders."
        )
    return Pair(train, val, notes + more)


def _folder(root: Path) -> tuple[FileImages, tuple[str, ...]]:
    from timm.data import create_dataset

    notes: tuple[str, ...] = ()
    folders: list[str] = []
    if root.is_dir():
        folders = sorted(each.name for each in os.scandir(root) if each.is_dir() and not each.name.startswith("."))
        if not folders:
            raise GlocalError(f"{root} has no sub-folders. Put the images of each class in a folder of its own.")
    try:
        dataset: Any = create_dataset("", root=str(root), search_split=False)
    except (RuntimeError, AssertionError) as error:
        raise GlocalError(f"{root}: {error}") from None
    classes = tuple(sorted(dataset.reader.class_to_idx, key=dataset.reader.class_to_idx.get))
    if empty := sorted(set(folders) - set(classes)):
        notes = (f"no image in {few([str(root / name) for name in empty])}: no such class is learned",)
    labels = torch.tensor([int(sample[1]) for sample in dataset.reader.samples])
    return FileImages(dataset, labels, classes, torch.arange(len(labels))), notes


def _timm(name: str, settings: DataSettings, statistics: tuple[Any, Any] | None = None) -> Pair:
    from timm.data import create_dataset

    def part(split: str) -> FileImages:
        try:
            dataset: Any = create_dataset(
                name, root=settings.root, split=split, is_training=split == "train", download=settings.download
            )
        except (RuntimeError, AssertionError, FileNotFoundError, ImportError) as error:
            raise GlocalError(f"data {name!r} cannot be opened: {error}") from None
        labels = _targets(dataset)
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
            f"{name} has {len(pair.train)} training and {len(pair.val)} validation images; both are needed."
        )


def _limited(pair: Pair, limit: int | None, seed: int) -> Pair:
    if limit is None or limit >= len(pair.train) or isinstance(pair.train, StreamImages):
        return pair
    chosen = torch.randperm(len(pair.train), generator=torch.Generator().manual_seed(seed))[:limit]
    return Pair(pair.train.take(chosen), pair.val, pair.notes)


def in_memory(pair: Pair, settings: DataSettings, size: tuple[int, int]) -> Pair:
    """Bring images to one size and keep them as bytes, where the settings ask for it or the set is small."""
    parts = [pair.train, pair.val]
    if any(isinstance(part, StreamImages) for part in parts):
        return pair
    pixels = sum(len(part) for part in parts) * size[0] * size[1] * 3
    files = any(isinstance(part, FileImages) for part in parts)
    if files and (settings.memory == "no" or (settings.memory == "auto" and (max(size) > 96 or pixels > 2**31))):
        return pair
    (train, broken), (val, more) = (to_memory(part, size, settings.unreadable) for part in parts)
    return Pair(train, val, pair.notes + broken + more)
