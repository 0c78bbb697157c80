"""A run, as frozen dataclasses: what a recipe says, checked and complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from glocal.site import Mechanism

Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["cosine", "step", "multistep", "poly", "constant"]
Tracker = Literal["tensorboard", "wandb", "trackio"]


def _at_least(name: str, value: float, least: float, *, strict: bool = False) -> None:
    if value < least or (strict and value == least):
        raise GlocalError(f"{name} is {value}; it must be {'more than' if strict else 'at least'} {least}.")


@dataclass(frozen=True)
class HostSettings:
    """The host: a timm name, whether its weights are loaded, and any other argument its builder takes."""

    name: str
    pretrained: bool = False
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class OptimSettings:
    """Optimiser and learning-rate schedule."""

    name: str = "adamw"
    """Any optimiser of timm."""
    lr: float = 1e-3
    """Rate for `base_batch` images; it grows with the global batch when that is given."""
    base_batch: int | None = None
    weight_decay: float = 0.05
    momentum: float = 0.9
    betas: tuple[float, float] | None = None
    eps: float | None = None
    layer_decay: float | None = None
    """Multiply the rate by this for each layer further from the head."""
    no_weight_decay: tuple[str, ...] = ()
    """Further parameter names, or patterns with *, that do not decay."""
    clip: float | None = None
    """Largest norm of the gradient."""
    schedule: Schedule = "cosine"
    warmup_epochs: float = 0
    warmup_lr: float = 1e-6
    min_lr: float = 1e-5
    cooldown_epochs: float = 0
    """Last epochs, kept at the final rate."""
    decay_epochs: tuple[float, ...] = ()
    """Where `multistep` falls; one number for `step`: how often."""
    decay_rate: float = 0.1
    """What `step` and `multistep` multiply by; the power of `poly`."""

    def __post_init__(self) -> None:
        _at_least("optim.lr", self.lr, 0, strict=True)
        _at_least("optim.weight_decay", self.weight_decay, 0)
        _at_least("optim.warmup_epochs", self.warmup_epochs, 0)
        if self.schedule in ("step", "multistep") and not self.decay_epochs:
            raise GlocalError(f"optim.schedule {self.schedule!r} needs decay_epochs, such as [60, 120, 160].")


@dataclass(frozen=True)
class MixSettings:
    """Mixing images and softening labels."""

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    switch_prob: float = 0.5
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prob", "switch_prob", "smoothing"):
            value: float = getattr(self, name)
            if not 0 <= value <= 1:
                raise GlocalError(f"mix.{name} is {value}; it lies between 0 and 1.")


@dataclass(frozen=True)
class DistillSettings:
    """A teacher to learn from, as DeiT does; a host with a distillation token gives it a head of its own."""

    teacher: str
    """A timm name, or a file that glocal.save() wrote."""
    kind: Literal["soft", "hard"] = "hard"
    alpha: float = 0.5
    """The teacher's share of the loss."""
    temperature: float = 3.0
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class HeadSettings:
    """What makes the host a detector or a segmenter."""

    name: str
    """detr, detr-linear, detr-life, retinanet, mask_rcnn; linear, upernet, semantic_fpn."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument the head takes."""
    backbone: str | None = None
    """A run folder or saved model whose host's weights are taken to start from."""
    host_lr: float = 1.0
    """Share of the learning rate that the host learns at; DETR's authors use 0.1."""
    keep_context: bool = False
    """Keep Context Broadcasting in blocks that feed a detector's pyramid; its paper leaves them out."""


@dataclass(frozen=True)
class SaveSettings:
    """Which checkpoints are written and kept, besides the last and the best."""

    every_steps: int | None = None
    """Also write the last checkpoint every so many steps; it is written at the end of every epoch anyway."""
    every_epochs: int | None = None
    """Keep a checkpoint of every so many epochs."""
    keep: int = 3
    """How many of those are kept."""


@dataclass(frozen=True)
class Recipe:
    """Everything one training run needs."""

    host: HostSettings
    data: DataSettings
    epochs: int
    task: str = "classify"
    mechanisms: tuple[Mechanism, ...] = ()
    preserve: bool = False
    head: HeadSettings | None = None
    """For detection and segmentation."""
    optim: OptimSettings = OptimSettings()
    mix: MixSettings = MixSettings()
    distill: DistillSettings | None = None
    ema: float | None = None
    """Decay of the moving average of the weights; none when not given."""
    precision: Precision = "fp32"
    accumulate: int = 1
    """Batches per optimiser step; `data.batch_size` is one step's whole batch."""
    compile: bool = False
    sync_bn: bool = False
    shard: bool = False
    """Spread weights, gradients and optimiser states over the processes (FSDP)."""
    seed: int = 0
    log_every: int = 50
    save: SaveSettings = SaveSettings()
    trackers: tuple[Tracker, ...] = ("tensorboard",)

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)
        _at_least("accumulate", self.accumulate, 1)
        _at_least("log_every", self.log_every, 1)
        if self.ema is not None and not 0 < self.ema < 1:
            raise GlocalError(f"ema is {self.ema}; a decay lies between 0 and 1, such as 0.9999.")
        if self.shard and (self.ema is not None or self.precision == "fp16"):
            raise GlocalError("shard goes with neither ema nor fp16. Leave them out; bf16 needs no scaling.")
        if self.data.batch_size % self.accumulate:
            raise GlocalError(
                f"data.batch_size {self.data.batch_size} cannot be shared by accumulate {self.accumulate}; "
                f"use a multiple."
            )
        if (self.mix.mixup or self.mix.cutmix) and self.data.batch_size // self.accumulate % 2:
            raise GlocalError(f"mixing pairs images, so data.batch_size {self.data.batch_size} must be even.")
