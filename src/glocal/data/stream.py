"""Images that come as a stream: webdataset shards and streamed hub sets, for sizes that no folder holds well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glocal.data.chance import number
from glocal.data.feed import Batch, evaluation_transform, training_transform
from glocal.data.images import IMAGENET, StreamImages
from glocal.data.order import Order
from glocal.data.settings import DataSettings
from glocal.errors import GlocalError


def open_stream(settings: DataSettings, split: str, training: bool, seed: int) -> StreamImages:
    """Open a stream through timm; how many images it has is in the shards' own description."""
    from timm.data import create_dataset

    if settings.classes is None:
        raise GlocalError(f"{settings.name} is a stream, whose classes cannot be counted. Give data.classes.")
    share = settings.batch_size
    try:
        dataset: Any = create_dataset(
            settings.name, root=settings.root, split=split, is_training=training, batch_size=share, seed=seed
        )
        count = int(dataset.reader.num_samples)
    except (RuntimeError, AssertionError, OSError, ImportError, KeyError) as error:
        raise GlocalError(f"data {settings.name!r} cannot be opened: {error}") from None
    return StreamImages(dataset, count, tuple(map(str, range(settings.classes))), *IMAGENET)


@dataclass
class StreamFeed:
    """Batches of a stream. A resume reads the epoch's earlier images again and drops them, so it ends up the same."""

    images: StreamImages
    validation: StreamImages
    settings: DataSettings
    order: Order
    device: torch.device
    size: tuple[int, int]

    def train(self, epoch: int, start: int = 0) -> Iterator[list[Batch]]:
        """Give each step's batches, one per accumulation part."""
        dataset = self.images.dataset
        mean, std = self.images.mean, self.images.std
        dataset.transform = training_transform(self.settings, self.size, mean, std)
        dataset.set_loader_cfg(num_workers=self.settings.workers)
        dataset.set_epoch(epoch)
        share = self.order.batch // self.order.accumulate // self.order.world
        batches = self._load(dataset, share, number(self.order.seed, epoch, self.order.rank), last=False)
        for step in range(self.order.steps):
            parts = list(itertools.islice(batches, self.order.accumulate))
            if len(parts) < self.order.accumulate:
                raise GlocalError(
                    f"{self.settings.name} ended after {step} of {self.order.steps} steps; "
                    f"does its description count more images than the shards hold?"
                )
            if step >= start:
                yield [(images.to(self.device), labels.to(self.device)) for images, labels in parts]

    def val(self) -> Iterator[Batch]:
        """Give this process's shards of the validation images."""
        dataset = self.validation.dataset
        dataset.transform = evaluation_transform(self.settings, self.size, self.images.mean, self.images.std)
        dataset.set_loader_cfg(num_workers=self.settings.workers)
        for images, labels in self._load(
            dataset, self.settings.eval_batch_size or self.settings.batch_size, 0, last=True
        ):
            yield images.to(self.device), labels.to(self.device)

    def _load(self, dataset: Any, batch: int, seed: int, *, last: bool) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = torch.utils.data.DataLoader(
            dataset,
            batch_size=batch,
            num_workers=max(self.settings.workers, 1),  # transforms draw from the workers' own generators
            drop_last=not last,
            generator=torch.Generator().manual_seed(seed),
            worker_init_fn=_seed_worker,
        )
        return iter(loader)


def _seed_worker(worker: int) -> None:
    import random

    import numpy as np

    seed = torch.initial_seed() % 2**32  # the loader's generator, and which worker this is
    random.seed(seed)
    np.random.seed(seed)
