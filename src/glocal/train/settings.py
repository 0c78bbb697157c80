"""A run, as frozen dataclasses: what a recipe says, checked and complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from glocal.data.check import Check
from glocal.data.settings import DataSettings
from glocal.site import Mechanism

Task = Literal["classify", "detect", "segment", "answer"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["cosine", "step", "multistep", "poly", "constant"]
Tracker = Literal["tensorboard", "wandb", "trackio"]


@dataclass(frozen=True)
class HostSettings:
    """The host: a timm name, whether its weights are loaded, and any other argument its builder takes.

    For task answer the name is a folder of transformers', or one on its hub.
    """

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
        check = Check(self, "optim")
        check.at_least(0, "lr", "clip", "decay_rate", "decay_epochs", strict=True)
        check.at_least(0, "weight_decay", "eps", "warmup_epochs", "warmup_lr", "min_lr", "cooldown_epochs")
        check.at_least(1, "base_batch")
        check.between(0, 1, "momentum", "layer_decay")
        if self.betas is not None and not all(0 <= each < 1 for each in self.betas):
            check.refuse(f"optim.betas is {self.betas}; both lie from 0 to below 1, such as [0.9, 0.999].", "betas")
        if self.layer_decay == 0:
            check.refuse("optim.layer_decay is 0; no layer but the head would learn. Such as 0.75.", "layer_decay")
        if self.schedule in ("step", "multistep") and not self.decay_epochs:
            told = f"optim.schedule {self.schedule!r} needs decay_epochs, such as [60, 120, 160]."
            check.refuse(told, "schedule", "decay_epochs")
        check.done()


@dataclass(frozen=True)
class MixSettings:
    """Mixing images and softening labels."""

    mixup: float = 0.0
    cutmix: float = 0.0
    prob: float = 1.0
    switch_prob: float = 0.5
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check = Check(self, "mix")
        check.at_least(0, "mixup", "cutmix")
        check.between(0, 1, "prob", "switch_prob", "smoothing")
        if self.smoothing == 1:
            check.refuse("mix.smoothing is 1; nothing of the label would be left. Such as 0.1.", "smoothing")
        check.done()


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

    def __post_init__(self) -> None:
        check = Check(self, "distill")
        check.between(0, 1, "alpha")
        check.at_least(0, "temperature", strict=True)
        check.done()


@dataclass(frozen=True)
class HeadSettings:
    """What makes the host a detector or a segmenter; for task answer, the head it has."""

    name: str
    """detr, detr-linear, detr-life, retinanet, mask_rcnn; linear, upernet, semantic_fpn; mlp, which ViLT has."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Any other argument the head takes."""
    backbone: str | None = None
    """A run folder or saved model whose host's weights are taken to start from."""
    host_lr: float = 1.0
    """Share of the learning rate that the host learns at; DETR's authors use 0.1."""
    keep_context: bool = False
    """Keep Context Broadcasting in blocks that feed a detector's pyramid; its paper leaves them out."""

    def __post_init__(self) -> None:
        check = Check(self, "head")
        check.at_least(0, "host_lr")
        check.done()


@dataclass(frozen=True)
class SaveSettings:
    """Which checkpoints are written and kept, besides the last and the best."""

    every_steps: int | None = None
    """Also write the last checkpoint every so many steps; it is written at the end of every epoch anyway."""
    every_epochs: int | None = None
    """Keep a checkpoint of every so many epochs."""
    keep: int = 3
    """How many of those are kept."""

    def __post_init__(self) -> None:
        check = Check(self, "save")
        check.at_least(1, "every_steps", "every_epochs")
        check.at_least(0, "keep")
        check.done()


@dataclass(frozen=True)
class Recipe:
    """Everything one training run needs."""

    host: HostSettings
    data: DataSettings
    epochs: int
    task: Task = "classify"
    mechanisms: tuple[Mechanism, ...] = ()
    preserve: bool = False
    head: HeadSettings | None = None
    """For detection and segmentation; for answers, to let the host learn more slowly than its head."""
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
        check = Check(self)
        check.at_least(1, "epochs", "accumulate", "log_every")
        if self.ema is not None and not 0 < self.ema < 1:
            check.refuse(f"ema is {self.ema}; a decay lies between 0 and 1, such as 0.9999.", "ema")
        if abs(self.seed) >= 2**63:
            check.refuse(f"seed is {self.seed}; it has at most 18 digits.", "seed")
        if self.shard and (self.ema is not None or self.precision == "fp16"):
            told = "shard goes with neither ema nor fp16. Leave them out; bf16 needs no scaling."
            check.refuse(told, "shard", "ema", "precision")
        if self.head is not None and self.task == "classify":
            told = f"head {self.head.name!r} is for tasks detect and segment. Name the task, or leave head out."
            check.refuse(told, "head", "task")
        self._check_batches(check)
        check.done()

    def _check_batches(self, check: Check) -> None:
        batch, parts = self.data.batch_size, max(self.accumulate, 1)
        if batch % parts:
            told = f"data.batch_size {batch} cannot be shared by accumulate {parts}; use a multiple."
            check.refuse(told, "data.batch_size", "accumulate")
        elif (self.mix.mixup or self.mix.cutmix) and batch // parts % 2:
            told = f"mixing pairs images, so data.batch_size {batch} must be even."
            check.refuse(told, "data.batch_size", "accumulate", "mix")

    @property
    def length_warning(self) -> str:
        """Say that warm-up and cool-down take longer than the run, as where epochs were cut down for a quick try."""
        optim = self.optim
        # A warm-up that was kept as a tenth of the epochs may be longer than a run by a rounding.
        if optim.warmup_epochs + optim.cooldown_epochs <= self.epochs + 1e-9:
            return ""
        return (
            f"warmup_epochs {optim.warmup_epochs:g} and cooldown_epochs {optim.cooldown_epochs:g} do not fit "
            f"into epochs {self.epochs}: the learning rate never gets to {optim.lr:g}. Shorten them, such as "
            f"--set optim.warmup_epochs={self.epochs / 10:g}"
        )
