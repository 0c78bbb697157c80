"""Batches of images with boxes or label maps: of any epoch, from any step on, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors

from glocal.data.coco import draw_outline
from glocal.data.decode import read_pixels
from glocal.data.dense import Boxed, DenseImages, DensePair, Labelled
from glocal.data.dense_transforms import evaluation, training
from glocal.data.images import UNREADABLE, few
from glocal.data.order import Order
from glocal.data.reading import Job, Skipped, drawing_from, in_steps, read, training_jobs, validation_jobs
from glocal.data.segmentation import read_labels
from glocal.data.settings import DataSettings

Item = tuple[Tensor, dict[str, Any]]  # (C, H, W) bytes, and what is asked of them
Read = tuple[Item | None, list[str], list[str]]  # the names of unreadable images, and label values that are no class
DenseBatch = tuple[list[Tensor], list[dict[str, Any]]]
_MEMORY = 2**30  # sets below this many bytes of pixels are decoded once


@dataclass
class DenseFeed:
    """Batches read by worker processes, drawn anew from (seed, epoch, image) for each image."""

    pair: DensePair
    settings: DataSettings
    order: Order
    device: torch.device
    size: tuple[int, int]
    masks: bool = False

    def __post_init__(self) -> None:
        chosen = self.settings.dense
        self.skipped = Skipped(self.settings.unreadable)
        self.strange: set[str] = set()
        train, val = self.pair.train, self.pair.val
        self.moments = (train.mean, train.std)
        self.training = _Reader(train, training(chosen, self.size, train), True, self.masks)
        self.evaluation = _Reader(val, evaluation(chosen, self.size), False, self.masks)
        if self.settings.memory != "no":
            for reader in (self.training, self.evaluation):
                reader.decode(_MEMORY if self.settings.memory == "auto" else None)

    def train(self, epoch: int, start: int = 0) -> Iterator[list[DenseBatch]]:
        """Give each step's batches, one per accumulation part."""
        count, jobs = len(self.pair.train), training_jobs(self.order, epoch, start)
        again = [[(index % count, key) for index, key in each] for each in jobs]  # passes of the set
        yield from in_steps(self._load(self.training, again), self.order.accumulate)

    def val(self) -> Iterator[DenseBatch]:
        """Give this process's share of the validation images; unreadable ones are left out and counted."""
        size = self.settings.eval_batch_size or self.settings.batch_size
        yield from self._load(self.evaluation, validation_jobs(self.order, len(self.pair.val), size))

    def _load(self, reader: _Reader, jobs: list[list[Job]]) -> Iterator[DenseBatch]:
        for items, broken, strange in read(reader, jobs, _collate, self.settings.workers):
            self._note(broken, strange)
            if items is not None:
                images, targets = items
                yield self._normalised(images), [_move(each, self.device) for each in targets]

    def _normalised(self, images: Tensor | list[Tensor]) -> list[Tensor]:
        """Bring bytes to the device, and there to mean 0 and deviation 1."""
        if isinstance(images, list):
            return [self._normalised(each[None])[0] for each in images]
        mean, std = (torch.tensor(each, device=self.device)[:, None, None] for each in self.moments)
        return list((images.to(self.device).float() / 255 - mean) / std)

    def _note(self, broken: list[str], strange: list[str]) -> None:
        for text in sorted(set(strange) - self.strange):
            self.strange.add(text)
            self.skipped.tell(f"{text}; such pixels are ignored")
        self.skipped.add(broken)


@dataclass
class _Reader:
    """Reads one image by (index, key); a training image that cannot be read gives its place to the next one."""

    images: DenseImages
    transform: Any
    training: bool
    masks: bool
    decoded: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    label_maps: dict[int, tuple[Tensor, list[int]]] = field(default_factory=dict[int, tuple[Tensor, list[int]]])

    def __len__(self) -> int:
        return len(self.images)

    def decode(self, most: int | None) -> None:
        """Keep all images decoded, where they are few: worker processes share them."""
        try:
            first = self._pixels(0)
        except UNREADABLE:
            return
        if most is not None and first.numel() * len(self) > most:
            return
        with ThreadPoolExecutor(8) as pool:
            for index, pixels in enumerate(pool.map(self._attempt, range(len(self)))):
                if pixels is not None:
                    self.decoded[index] = pixels
            whole = [index for index in self.decoded if isinstance(self.images.samples[index], Labelled)]
            for index, labels in zip(whole, pool.map(self._attempt_labels, whole), strict=True):
                if labels is not None:
                    self.label_maps[index] = labels

    def __getitem__(self, job: tuple[int, int]) -> Read:
        index, key = job
        broken: list[str] = []
        strange: list[str] = []
        for _ in range(20):
            try:
                image, target = self._read(index, strange)
            except UNREADABLE:
                broken.append(self.images.name(index))
                if not self.training:
                    break
                index = (index + 1) % len(self.images)
                continue
            with drawing_from(key):
                return self._changed(image, target), broken, strange
        return None, broken, strange

    def _changed(self, image: Tensor, target: dict[str, Any]) -> Item:
        if self.training:
            return self.transform(image, target)
        size = tuple(image.shape[-2:])
        return self.transform(image), target | {"size": size}  # answers are brought back to the image's own size

    def _attempt(self, index: int) -> Tensor | None:
        try:
            return self._pixels(index)
        except UNREADABLE:
            return None

    def _attempt_labels(self, index: int) -> tuple[Tensor, list[int]] | None:
        try:
            return self._labels(index)
        except UNREADABLE:
            return None

    def _pixels(self, index: int) -> Tensor:
        return read_pixels(self.images.samples[index].image)

    def _read(self, index: int, strange: list[str]) -> tuple[Tensor, dict[str, Any]]:
        pixels = tv_tensors.Image(self.decoded[index] if index in self.decoded else self._pixels(index))
        sample = self.images.samples[index]
        if isinstance(sample, Labelled):
            return pixels, {"labels": self._label_map(index, strange)}
        return pixels, self._objects(sample, tuple(pixels.shape[-2:]))

    def _objects(self, sample: Boxed, size: Any) -> dict[str, Any]:
        kept = ~sample.hard if self.training else torch.ones_like(sample.hard)
        boxes = tv_tensors.BoundingBoxes(sample.boxes[kept], format="XYXY", canvas_size=size)  # pyright: ignore
        target: dict[str, Any] = {"boxes": boxes, "labels": sample.labels[kept]}
        if self.masks:
            outlines = [each for each, keep in zip(sample.outlines, kept.tolist(), strict=True) if keep]
            drawn = [draw_outline(each, sample.size) for each in outlines]
            target["masks"] = tv_tensors.Mask(torch.stack(drawn) if drawn else torch.zeros(0, *size, dtype=torch.uint8))
        return target if self.training else target | {"hard": sample.hard}

    def _label_map(self, index: int, strange: list[str]) -> tv_tensors.Mask:
        labels, values = self.label_maps[index] if index in self.label_maps else self._labels(index)
        if values:
            name = self.images.samples[index].labels.name  # pyright: ignore[reportAttributeAccessIssue]
            strange.append(f"{name} holds label {few(list(map(str, values)), 3)}, which is no class")
        return tv_tensors.Mask(labels)

    def _labels(self, index: int) -> tuple[Tensor, list[int]]:
        labels, values = read_labels(self.images.samples[index], self.images)  # pyright: ignore[reportArgumentType]
        small = labels.max() < 256 and labels.min() >= 0
        return labels.to(torch.uint8) if small else labels, values


def _collate(items: list[Read]) -> tuple[tuple[Any, list[dict[str, Any]]] | None, list[str], list[str]]:
    """Keep what could be read, and gather the names of the rest.

    What is small goes as arrays, by value: a tensor costs a file handle on its way out of a worker process.
    """
    whole = [item for item, _, _ in items if item is not None]
    broken, strange = [name for _, names, _ in items for name in names], [text for *_, texts in items for text in texts]
    if not whole:
        return None, broken, strange
    images = [image for image, _ in whole]
    together = torch.stack(images) if len({image.shape for image in images}) == 1 else images
    return (together, [_light(target) for _, target in whole]), broken, strange


def _light(target: dict[str, Any]) -> dict[str, Any]:
    return {key: value.numpy() if isinstance(value, Tensor) else value for key, value in target.items()}


def _move(target: dict[str, Any], device: torch.device) -> dict[str, Any]:
    moved = {k: torch.from_numpy(v).to(device) if isinstance(v, np.ndarray) else v for k, v in target.items()}
    return moved | {"labels": moved["labels"].long()}
