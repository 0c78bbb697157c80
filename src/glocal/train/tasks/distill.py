"""Distillation: learn from a teacher's answers, softly or by its decisions.

Touvron et al., "Training data-efficient image transformers & distillation through attention".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.errors import GlocalError
from glocal.store import load
from glocal.train.settings import DistillSettings
from glocal.zoo import create_model


class Teacher:
    """A finished model whose answers are learned; it is never changed."""

    def __init__(
        self, model: nn.Module, settings: DistillSettings, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        device = next(model.parameters()).device
        config: Any = getattr(model, "pretrained_cfg", None) or {}
        theirs = [torch.tensor(config.get(key, ours)) for key, ours in (("mean", mean), ("std", std))]
        ours = [torch.tensor(tuple(each)) for each in (mean, std)]
        # The images come normalised for the student; one line brings them to the teacher's normalisation.
        self.scale = (ours[1] / theirs[1])[:, None, None].to(device)
        self.shift = ((ours[0] - theirs[0]) / theirs[1])[:, None, None].to(device)

    @classmethod
    def build(
        cls, settings: DistillSettings, classes: int, mean: Sequence[float], std: Sequence[float], device: Any
    ) -> Teacher:
        """Load a saved teacher, or a pretrained one by its timm name."""
        if Path(settings.teacher).is_file():
            model = load(Path(settings.teacher))
        else:
            model = create_model(settings.teacher, **{"pretrained": True, "num_classes": classes, **settings.arguments})
        if (there := getattr(model, "num_classes", classes)) != classes:
            raise GlocalError(f"the teacher {settings.teacher} knows {there} classes, the data has {classes}.")
        return cls(model.to(device), settings, mean, std)

    def loss(
        self, criterion: nn.Module, answer: Tensor | tuple[Tensor, Tensor], images: Tensor, target: Tensor
    ) -> Tensor:
        """Add the teacher's share; a student with a distillation token answers twice, once for each."""
        own, copied = answer if isinstance(answer, tuple) else (answer, answer)
        with torch.no_grad():
            taught = self.model(images * self.scale + self.shift)
        return (1 - self.settings.alpha) * criterion(own, target) + self.settings.alpha * self._distance(copied, taught)

    def _distance(self, answer: Tensor, taught: Tensor) -> Tensor:
        if self.settings.kind == "hard":
            return F.cross_entropy(answer, taught.argmax(dim=1))
        heat = self.settings.temperature
        student, teacher = (F.log_softmax(each.float() / heat, dim=1) for each in (answer, taught))
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * heat**2
