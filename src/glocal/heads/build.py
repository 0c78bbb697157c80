"""Heads by name, each with the options it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torchvision.models import detection

from glocal.errors import GlocalError, nearest
from glocal.heads.detr import DETR
from glocal.heads.linear import LinearSegmenter
from glocal.heads.mask_rcnn import MaskRCNN
from glocal.heads.retinanet import RetinaNet
from glocal.heads.semantic_fpn import SemanticFPN
from glocal.heads.upernet import UperNet


@dataclass(frozen=True)
class Head:
    """How a head is made, for which task, and whether blocks that feed it do without Context Broadcasting."""

    task: str
    make: Callable[..., nn.Module]
    spares: bool = False
    inner: Callable[..., Any] | None = None
    """What further options go to, where that is another's class."""


HEADS: dict[str, Head] = {
    "detr": Head("detect", DETR),
    "detr-linear": Head("detect", partial(DETR, project="linear")),
    "detr-life": Head("detect", partial(DETR, project="life")),
    "retinanet": Head("detect", RetinaNet, spares=True, inner=detection.RetinaNet),
    "mask_rcnn": Head("detect", MaskRCNN, spares=True, inner=detection.MaskRCNN),
    "linear": Head("segment", LinearSegmenter),
    "upernet": Head("segment", UperNet),
    "semantic_fpn": Head("segment", SemanticFPN),
}


def head(name: str, task: str | None = None) -> Head:
    """Find a head by its name, and check that it does the task."""
    fitting = [each for each, found in HEADS.items() if task in (None, found.task)]
    if name not in fitting:
        whose = "" if task is None else f" for task {task}"
        raise GlocalError(f"unknown head {name!r}{whose}.{nearest(name, fitting)} There are: {', '.join(fitting)}.")
    return HEADS[name]


def put_on(host: nn.Module, name: str, classes: int, **options: Any) -> nn.Module:
    """Put a head on a host, which loses its own classifier: a detector or a segmenter for so many classes."""
    found = head(name)
    takers = [found.make, *([found.inner] if found.inner else [])]
    known = [each for taker in takers for each in inspect.signature(taker).parameters if each not in _FIXED]
    for key in options:
        if key not in known:
            taken = ", ".join(known) or "no options"
            raise GlocalError(f"head {name} does not take {key!r}.{nearest(key, known)} It takes: {taken}.")
    return found.make(host, classes, **options)


_FIXED = ("host", "classes", "project", "backbone", "num_classes", "min_size", "max_size", "kwargs", "options")
