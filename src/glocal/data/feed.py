"""Batches: of any epoch, from any step on, the same however often they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from glocal.data.augment import Augmenter
from glocal.data.chance import keys
from glocal.data.decode import fitting, share_seen
from glocal.data.images import UNREADABLE, FileImages, Images, MemoryImages, StreamImages
from glocal.data.order import Order
from glocal.data.reading import Job, Skipped, drawing_from, in_steps, read, training_jobs, validation_jobs
from glocal.data.settings import DataSettings

Batch = tuple[Tensor, Tensor]  # (B, C, H, W) normalised images, (B,) labels


class Feed(Protocol):
    """Training batches of an epoch from a step on, and the validation images once."""

    order: Order

    def train(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """Give each step's batches, one per accumulation part."""
        ...

    def val(self) -> Iterator[Batch]:
        """Give this process's share of the validation images; the shares of all processes hold each image once."""
        ...


def feed(
    train: Images, val: Images, settings: DataSettings, order: Order, device: torch.device, size: tuple[int, int]
) -> Feed:
    """Choose how batches are made: from memory on the device, or by worker processes that read files."""
    if isinstance(train, MemoryImages) and isinstance(val, MemoryImages):
        return MemoryFeed(train.to(device), val.to(device), settings, order)
    if isinstance(train, StreamImages) and isinstance(val, StreamImages):
        from glocal.data.stream import StreamFeed

        return StreamFeed(train, val, settings, order, device, size)
    assert isinstance(train, FileImages) and isinstance(val, FileImages)
    return FileFeed(train, val, settings, order, device, size)


@dataclass
class MemoryFeed:
    """Batches of images that lie on the device; nothing is read, decoded or copied."""

    images: MemoryImages
    validation: MemoryImages
    settings: DataSettings
    order: Order

    def __post_init__(self) -> None:
        self.augmenter = Augmenter(self.settings.augment, self.images.mean, self.images.std)

    def train(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """Give each step's batches, one per accumulation part."""
        listed = self.order.epoch(epoch)
        on_device = listed[0].to(self.images.pixels.device)
        for step in range(start, self.order.steps):
            yield [self._batch(epoch, listed, on_device, step, part) for part in range(self.order.accumulate)]

    def _batch(self, epoch: int, listed: tuple[Tensor, Tensor], on_device: Tensor, step: int, part: int) -> Batch:
        index, copy = self.order.part(listed, step, part)
        there, _ = self.order.part((on_device, on_device), step, part)
        key = keys(self.order.seed, epoch, index, copy)
        return self.augmenter(self.images.pixels[there], key), self.images.labels[there]

    def val(self) -> Iterator[Batch]:
        """Give this process's share of the validation images."""
        size = self.settings.eval_batch_size or self.settings.batch_size
        pixels = self.validation.pixels[self.order.rank :: self.order.world]
        labels = self.validation.labels[self.order.rank :: self.order.world]
        for start in range(0, len(pixels), size):
            yield self.augmenter.normalise(pixels[start : start + size]), labels[start : start + size]


@dataclass
class FileFeed:
    """Batches read by worker processes; timm's transforms, drawn anew from (seed, epoch, image) for each image."""

    images: FileImages
    validation: FileImages
    settings: DataSettings
    order: Order
    device: torch.device
    size: tuple[int, int]

    def __post_init__(self) -> None:
        self.skipped = Skipped(self.settings.unreadable)
        mean, std = self.images.mean, self.images.std
        self.training = training_transform(self.settings, self.size, mean, std)
        self.evaluation = evaluation_transform(self.settings, self.size, mean, std)

    def train(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """Give each step's batches, one per accumulation part."""
        reader = _Reader(self.images, self.training, replace=True)
        yield from in_steps(self._load(reader, training_jobs(self.order, epoch, start)), self.order.accumulate)

    def val(self) -> Iterator[Batch]:
        """Give this process's share of the validation images; unreadable ones are left out and counted."""
        size = self.settings.eval_batch_size or self.settings.batch_size
        reader = _Reader(self.validation, self.evaluation, replace=False)
        yield from self._load(reader, validation_jobs(self.order, len(self.validation), size))

    def _load(self, reader: _Reader, jobs: list[list[Job]]) -> Iterator[Batch]:
        pin = self.device.type == "cuda"
        for images, labels, broken in read(reader, jobs, _collate, self.settings.workers, pin=pin):
            self.skipped.add(broken)
            if len(images):
                yield images.to(self.device, non_blocking=pin), labels.to(self.device, non_blocking=pin)


@dataclass
class _Reader:
    """Reads one image by (index, key); a training image that cannot be read gives its place to the next one."""

    images: FileImages
    transform: Any
    replace: bool

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, job: tuple[int, int]) -> tuple[Tensor | None, int, list[str]]:
        index, key = job
        broken: list[str] = []
        for _ in range(20):
            try:
                image = self.images.open(index)
            except UNREADABLE:
                broken.append(self.images.name(index))
                if not self.replace:
                    break
                index = (index + 1) % len(self.images)
                continue
            with drawing_from(key):
                return self.transform(image), int(self.images.labels[index]), broken
        return None, -1, broken


def _collate(items: list[tuple[Tensor | None, int, list[str]]]) -> tuple[Tensor, Tensor, list[str]]:
    whole = [(image, label) for image, label, _ in items if image is not None]
    images = torch.stack([image for image, _ in whole]) if whole else torch.empty(0)
    return images, torch.tensor([label for _, label in whole]), [name for *_, names in items for name in names]


def training_transform(settings: DataSettings, size: tuple[int, int], mean: Any, std: Any) -> Any:
    """Write the augmentation as timm's transform for one image."""
    from timm.data.transforms_factory import create_transform
    from torchvision import transforms

    chosen = settings.augment
    common: dict[str, Any] = {
        "input_size": size,
        "is_training": True,
        "interpolation": chosen.interpolation,
        "mean": mean,
        "std": std,
    }
    if chosen.crop == "none" and not (chosen.flip or chosen.rand or chosen.jitter or chosen.erase):
        return evaluation_transform(settings, size, mean, std)
    transform: Any = create_transform(
        **common,
        scale=chosen.scale,
        ratio=chosen.ratio,
        hflip=chosen.flip,
        color_jitter=chosen.jitter or 0.0,
        auto_augment=chosen.rand,
        re_prob=chosen.erase,
        re_mode="pixel",
    )
    if chosen.crop != "resized":
        shift = [transforms.RandomCrop(size, padding=chosen.padding)] if chosen.crop == "pad" else []
        transform.transforms[0:1] = [*fitting(size), *shift]
    return transform


def evaluation_transform(settings: DataSettings, size: tuple[int, int], mean: Any, std: Any) -> Any:
    """Resize, centre crop, normalise."""
    from timm.data.transforms_factory import create_transform

    return create_transform(size, interpolation="bicubic", mean=mean, std=std, crop_pct=share_seen(settings, size))
