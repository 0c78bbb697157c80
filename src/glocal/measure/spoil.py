"""Two ways to spoil a classifier's images: their middle hidden, and one step against the model.

Context Broadcasting, Table 8. The step is that of Goodfellow et al., "Explaining and Harnessing Adversarial Examples".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

import torch
from torch import Tensor

from glocal.errors import GlocalError

Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Scale:
    """Where black and white lie in normalised images."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def at(self, value: float, like: Tensor) -> Tensor:
        """Bring a value of pixels from 0 to 1 to what it is in normalised images: (C, 1, 1)."""
        return (value - self._of(self.mean, like)) / self._of(self.std, like)

    def step(self, length: float, like: Tensor) -> Tensor:
        """Bring a difference of pixels to what it is in normalised images: (C, 1, 1)."""
        return length / self._of(self.std, like)

    def _of(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]


def hide_centre(images: Tensor, share: float, fill: Tensor) -> Tensor:
    """Fill the middle of (B, C, H, W) images, `share` of the height by `share` of the width, to the nearest pixel."""
    height, width = images.shape[-2:]
    tall, wide = round(share * height), round(share * width)
    top, left = (height - tall) // 2, (width - wide) // 2
    hidden = images.clone()
    hidden[..., top : top + tall, left : left + wide] = fill
    return hidden


def fgsm(ask: Ask, images: Tensor, labels: Tensor, epsilon: float, scale: Scale) -> Tensor:
    """Move every value of normalised images by epsilon, on the scale 0 to 1, to where the loss at the labels grows.

    What no pixel can be is cut off. Where the loss is flat, nothing moves.
    """
    # In full precision: in half, small slopes become zero, which has no sign.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(images.device.type, enabled=False):
        given = images.detach().clone().requires_grad_()
        answers = ask(given)
        (slope,) = torch.autograd.grad(answers, given, _uphill(answers.detach(), labels.clone()))
    moved = images + scale.step(epsilon, images) * slope.sign()
    return torch.clamp(moved, scale.at(0.0, images), scale.at(1.0, images))


def _uphill(answers: Tensor, labels: Tensor) -> Tensor:
    """Give the slope of each image's cross-entropy by its answers, divided by 1 - p of its label.

    No sign feels the division, but without it the slope of a model that is sure rounds to zero, and nothing would move.
    """
    others = answers.float().scatter(1, labels[:, None], -torch.inf).softmax(dim=1)
    return others.scatter(1, labels[:, None], -1.0).to(answers.dtype)


class Spoil(Protocol):
    """A way to spoil normalised images of which the labels are known."""

    @property
    def name(self) -> str:
        """Say how images are spoilt, and by how much."""
        ...

    def __call__(self, ask: Ask, images: Tensor, labels: Tensor, scale: Scale) -> Tensor:
        """Give the images spoilt; `ask` gives the model's answers."""
        ...


@dataclass(frozen=True)
class HiddenCentre:
    """The middle hidden, as a share of each side; half is 112 x 112 of 224 x 224 pixels, as in the paper."""

    share: float = 0.5
    fill: Literal["black", "mean"] = "black"
    """Black as the paper's zeros are read here, or the mean of the training images, which is zero once normalised."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise GlocalError(f"a share of {self.share} of the sides cannot be hidden; it lies above 0, at most 1.")

    @property
    def name(self) -> str:
        """Say how much is hidden."""
        return f"centre_hidden_{self.share:g}" + ("" if self.fill == "black" else f"_{self.fill}")

    def __call__(self, ask: Ask, images: Tensor, labels: Tensor, scale: Scale) -> Tensor:
        """Hide the middle; nobody is asked."""
        black = scale.at(0.0, images)
        return hide_centre(images, self.share, black if self.fill == "black" else torch.zeros_like(black))


@dataclass(frozen=True)
class SignedStep:
    """One step of the fast gradient sign method; the paper does not say how long its step is."""

    epsilon: Fraction = Fraction(1, 255)

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise GlocalError(
                f"a step of {self.epsilon} cannot be taken; pixels lie between 0 and 1. Try 1/255 or 8/255."
            )

    @property
    def name(self) -> str:
        """Say how long the step is, in 255ths where that is a whole number."""
        bytes_ = self.epsilon * 255
        return f"fgsm_{bytes_}/255" if bytes_.denominator == 1 else f"fgsm_{float(self.epsilon):g}"

    def __call__(self, ask: Ask, images: Tensor, labels: Tensor, scale: Scale) -> Tensor:
        """Step against the model."""
        return fgsm(ask, images, labels, float(self.epsilon), scale)


def step(text: str) -> SignedStep:
    """Read a step's length: 1/255, or 0.01."""
    try:
        return SignedStep(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise GlocalError(f"a step's length is a number, such as 1/255 or 0.01, not {text!r}.") from None
