"""Distillation: learn from a teacher's answers, softly or by its decisions.

Touvron et al., "Training data-efficient image transformers & distillation through attention".
"""

from __future__ import annotations

import json
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

Look = tuple[Sequence[float], Sequence[float]]  # mean and deviation images are normalised with


class Teacher:
    """A finished model whose answers are learned; it is never changed."""

    def __init__(self, model: nn.Module, settings: DistillSettings, ours: Look, theirs: Look) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings
        device = next(model.parameters()).device
        (mean, std), (their_mean, their_std) = ([torch.tensor(each) for each in look] for look in (ours, theirs))
        # The images come normalised for the student; one line brings them to the teacher's normalisation.
        self.scale = (std / their_std)[:, None, None].to(device)
        self.shift = ((mean - their_mean) / their_std)[:, None, None].to(device)

    @classmethod
    def build(cls, settings: DistillSettings, classes: int, ours: Look, device: Any) -> Teacher:
        """Load a saved teacher, or a pretrained one by its timm name."""
        file = Path(settings.teacher)
        if file.is_file():
            model, theirs = load(file), _look_of_run(file.parent, ours)
        else:
            model = create_model(settings.teacher, **{"pretrained": True, "num_classes": classes, **settings.arguments})
            config: Any = getattr(model, "pretrained_cfg", None) or {}
            theirs = (config.get("mean", ours[0]), config.get("std", ours[1]))
        if (there := getattr(model, "num_classes", classes)) != classes:
            raise GlocalError(f"the teacher {settings.teacher} knows {there} classes, the data has {classes}.")
        return cls(model.to(device), settings, ours, theirs)

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


def _look_of_run(folder: Path, ours: Look) -> Look:
    """Read the normalisation a run trained with; without a run beside the file it is taken to be the student's."""
    if not (folder / "metrics.json").exists():
        return ours
    facts: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return facts.get("mean", ours[0]), facts.get("std", ours[1])
