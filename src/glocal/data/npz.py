"""Images and labels in an .npz file, with every way it can be wrong told."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glocal.data.images import MemoryImages
from glocal.errors import GlocalError

Array = np.ndarray[Any, Any]
_WRITE = "Write it with numpy.savez(path, images=…, labels=…)."


def npz(path: Path) -> MemoryImages:
    """Read `images` (N, H, W, 3) uint8 and `labels` (N,), and `classes` where they are named."""
    arrays = _arrays(path)
    pixels = _pixels(path, arrays["images"])
    labels = _labels(path, arrays["labels"], len(pixels))
    classes = _classes(path, labels, arrays.get("classes"))
    tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return MemoryImages(tensor, torch.from_numpy(labels), classes, *statistics(pixels))


def _arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise GlocalError(f"{path} does not exist.")
    try:
        with path.open("rb") as stream:
            if stream.read(2) != b"PK":  # numpy would take it for something else, and say so in riddles
                raise GlocalError(f"{path} cannot be read as .npz: it is no zip archive. {_WRITE}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ("images", "labels", "classes") if name in file.files}
            found = file.files
    # A zip may also ask for a password (RuntimeError); a damaged head may ask for any amount of memory.
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise GlocalError(f"{path} cannot be read as .npz: {error}. Was it cut short? {_WRITE}") from None
    if "images" not in arrays or "labels" not in arrays:
        raise GlocalError(f"{path} holds {', '.join(found) or 'nothing'}; it needs `images` and `labels`. {_WRITE}")
    return arrays


def _pixels(path: Path, pixels: Array) -> Array:
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.dtype != np.uint8 or pixels.shape[-1] not in (1, 3):
        raise GlocalError(f"{path}: images are {pixels.dtype} {pixels.shape}; wanted uint8 (N, H, W, 3) or (N, H, W).")
    if not pixels.size:
        raise GlocalError(f"{path} holds no images: their shape is {pixels.shape}.")
    return pixels


def _labels(path: Path, labels: Array, count: int) -> Array:
    wanted = f"wanted {count} whole numbers, one per image"
    if labels.dtype.kind not in "biuf":
        found = "text" if labels.dtype.kind in "US" else labels.dtype
        raise GlocalError(f"{path}: labels are {found}; {wanted}. Number them, and name them in `classes`.")
    if labels.shape in ((count, 1), (1, count)):
        raise GlocalError(f"{path}: labels are of shape {labels.shape}; {wanted}. Use labels.reshape(-1).")
    if labels.ndim == 2 and len(labels) == count:
        raise GlocalError(f"{path}: labels are of shape {labels.shape}; {wanted}. Use labels.argmax(axis=1).")
    if labels.ndim != 1:
        raise GlocalError(f"{path}: labels are of shape {labels.shape}; {wanted}.")
    if len(labels) != count:
        raise GlocalError(f"{path}: {count} images but {len(labels)} labels.")
    odd = labels[~(np.isfinite(labels) & (labels == np.floor(labels)) & (labels >= 0) & (labels < 2**31))]
    if len(odd):
        raise GlocalError(f"{path}: {len(odd)} labels are no class numbers, such as {odd[0]}; {wanted}, from 0 on.")
    return labels.astype(np.int64)


def _classes(path: Path, labels: Array, names: Array | None) -> tuple[str, ...]:
    count = int(labels.max()) + 1
    if names is None:
        if count > max(1000, 10 * len(labels)):  # all these classes would be learned, and counted in a square table
            raise GlocalError(
                f"{path}: {len(labels)} images with labels up to {count - 1}. "
                f"Number the {len(np.unique(labels))} classes from 0 on, or name them all in `classes`."
            )
        return tuple(map(str, range(count)))
    if names.ndim != 1:
        raise GlocalError(f"{path}: classes are of shape {names.shape}; wanted one name for each label, ({count},).")
    if len(names) < count:
        raise GlocalError(f"{path}: labels run from {labels.min()} to {count - 1}, but there are {len(names)} classes.")
    return tuple(each.decode() if isinstance(each, bytes) else str(each) for each in names.tolist())


def statistics(pixels: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measure the mean and the deviation of each channel of (N, H, W, C) bytes, from 0 to 1."""
    some = pixels[:: max(len(pixels) // 5000, 1)].astype(np.float32) / 255
    mean, std = some.mean(axis=(0, 1, 2)), some.std(axis=(0, 1, 2))
    return tuple(round(float(m), 4) for m in mean), tuple(round(max(float(s), 1e-3), 4) for s in std)
