"""The order of an epoch, and each process's share of each step: pure functions, so a resume can enter anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glocal.data.chance import number
from glocal.errors import GlocalError


@dataclass(frozen=True)
class Order:
    """Which images make up which batch of which epoch.

    The global batch is the same for any number of processes; process `rank` takes every `world`-th image of it, so
    that repeated copies of an image land on different processes, as in DeiT's repeated augmentation.
    """

    images: int
    batch: int
    seed: int = 0
    repeats: int = 1
    accumulate: int = 1
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch % (self.world * self.accumulate):
            raise GlocalError(
                f"a batch of {self.batch} images cannot be shared by {self.world} processes in {self.accumulate} "
                f"parts. Use a multiple of {self.world * self.accumulate}."
            )
        if self.images < self.batch:
            raise GlocalError(
                f"{self.images} training images do not fill one batch of {self.batch}. "
                f"Give data.batch_size={_below(self.images, self.world * self.accumulate)} or more images."
            )

    @property
    def steps(self) -> int:
        """Optimiser steps per epoch; an incomplete last batch is left out."""
        return self.images // self.batch

    def epoch(self, epoch: int) -> tuple[Tensor, Tensor]:
        """List the epoch's images and which copy of the image each is."""
        generator = torch.Generator().manual_seed(number(self.seed, epoch))
        shuffled = torch.randperm(self.images, generator=generator)
        places = torch.arange(self.images)
        return shuffled[places // self.repeats], places % self.repeats

    def part(self, epoch: tuple[Tensor, Tensor], step: int, part: int = 0) -> tuple[Tensor, Tensor]:
        """Pick this process's images of one part of one step."""
        share = self.batch // self.accumulate
        start = step * self.batch + part * share + self.rank
        stop = step * self.batch + (part + 1) * share
        return epoch[0][start : stop : self.world], epoch[1][start : stop : self.world]


def _below(images: int, multiple: int) -> int:
    return max(images // multiple * multiple, multiple)
