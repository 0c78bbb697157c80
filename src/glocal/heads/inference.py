"""Ask a segmenter about whole images, or window by window."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.errors import GlocalError


def whole(model: nn.Module, images: Sequence[Tensor], multiple: int = 32) -> list[Tensor]:
    """Give each image's (classes, H, W) scores; images of one size go together, others alone and padded."""
    if len({each.shape for each in images}) == 1 and all(side % multiple == 0 for side in images[0].shape[-2:]):
        return list(model(torch.stack(list(images))).float())
    answers: list[Tensor] = []
    for image in images:
        height, width = image.shape[-2:]
        try:
            answers.append(model(image[None])[0].float())
        except (GlocalError, RuntimeError):  # a host that wants whole patches
            padded = F.pad(image, (0, -width % multiple, 0, -height % multiple))
            answers.append(model(padded[None])[0, :, :height, :width].float())
    return answers


def slide(model: nn.Module, image: Tensor, window: tuple[int, int], stride: tuple[int, int] | None = None) -> Tensor:
    """Average the (classes, H, W) scores of overlapping windows; each is two thirds of a window from the next."""
    stride = stride or (max(2 * window[0] // 3, 1), max(2 * window[1] // 3, 1))
    height, width = image.shape[-2:]
    image = F.pad(image, (0, max(window[1] - width, 0), 0, max(window[0] - height, 0)))
    tops, lefts = (_starts(side, w, s) for side, w, s in zip(image.shape[-2:], window, stride, strict=True))
    total = torch.zeros(())
    seen = image.new_zeros(image.shape[-2:], dtype=torch.float32)
    for top in tops:
        for left in lefts:
            part = image[None, :, top : top + window[0], left : left + window[1]]
            scores = model(part)[0].float()
            if total.ndim == 0:
                total = scores.new_zeros(len(scores), *image.shape[-2:])
            total[:, top : top + window[0], left : left + window[1]] += scores
            seen[top : top + window[0], left : left + window[1]] += 1
    return (total / seen)[:, :height, :width]


def _starts(side: int, window: int, stride: int) -> list[int]:
    last = side - window
    return [*range(0, last, stride), last]
