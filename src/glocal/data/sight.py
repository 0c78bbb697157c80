"""How an image and a question are laid out for a model that takes both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from glocal.data.images import eight_bit, upright


@dataclass(frozen=True)
class Sight:
    """How an image is brought to size: its shorter side to a length, or both, cut down to whole patches."""

    size: int | tuple[int, int]
    patch: int
    longest: int | None = None

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """Give the size of an image of this size."""
        if isinstance(self.size, tuple):
            sides: tuple[float, float] = self.size
        else:
            longest = self.longest or self.size * 1333 // 800  # ViLT's limit, from detectors
            scale = min(self.size / min(height, width), longest / max(height, width))
            sides = (height * scale, width * scale)
        fitted = [max(int(side + 0.5) // self.patch, 1) * self.patch for side in sides]
        return fitted[0], fitted[1]

    def __call__(self, image: Image.Image) -> Image.Image:
        height, width = self.fit(image.height, image.width)
        return image.resize((width, height), Image.Resampling.BICUBIC)


def see(file: Path) -> Image.Image:
    """Read an image; raises one of `UNREADABLE` where that cannot be done."""
    with Image.open(file) as opened:
        return eight_bit(upright(opened), "RGB")


def gather(images: list[Image.Image], questions: list[list[int]]) -> dict[str, Tensor]:
    """Make a batch of bytes: smaller images and shorter questions are filled up, and masks say where."""
    height, width = max(each.height for each in images), max(each.width for each in images)
    pixels = torch.zeros(len(images), 3, height, width, dtype=torch.uint8)
    there = torch.zeros(len(images), height, width, dtype=torch.long)
    words = torch.zeros(len(questions), max(map(len, questions)), dtype=torch.long)
    read_words = torch.zeros_like(words)
    for i, (image, question) in enumerate(zip(images, questions, strict=True)):
        pixels[i, :, : image.height, : image.width] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        there[i, : image.height, : image.width] = 1
        words[i, : len(question)] = torch.tensor(question)
        read_words[i, : len(question)] = 1
    return {"input_ids": words, "attention_mask": read_words, "pixel_values": pixels, "pixel_mask": there}


def normalised(inputs: dict[str, Tensor], mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Tensor]:
    """Bring bytes to mean 0 and deviation 1 where there is an image, and to 0 elsewhere."""
    pixels, there = inputs["pixel_values"], inputs["pixel_mask"]
    middle, spread = (torch.tensor(each, device=pixels.device)[:, None, None] for each in (mean, std))
    return inputs | {"pixel_values": (pixels.float() / 255 - middle) / spread * there[:, None]}
