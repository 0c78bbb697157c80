"""Optimiser and schedule: timm's, with each parameter's own rate and decay."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

from timm.models import group_parameters
from timm.optim import create_optimizer_v2, get_optimizer_info, list_optimizers
from timm.scheduler import StepLRScheduler, create_scheduler_v2
from torch import nn
from torch.optim import Optimizer

from glocal.errors import GlocalError, nearest
from glocal.train.settings import OptimSettings

_AHEAD = "lookahead_"  # timm puts any optimiser behind this one


def optimiser(model: nn.Module, settings: OptimSettings, batch: int) -> Optimizer:
    """Build the optimiser for a global batch of so many images."""
    known = [str(each) for each in list_optimizers()]
    name = settings.name.removeprefix(_AHEAD)
    if name not in known:
        near = nearest(name, known) or " Such as adamw, sgd or lamb; `timm.optim.list_optimizers()` names all."
        raise GlocalError(f"unknown optimiser {settings.name!r}.{near}")
    if get_optimizer_info(name).second_order:
        raise GlocalError(f"optimiser {name} wants second derivatives, which the loop does not take. Such as adamw.")
    extra: dict[str, Any] = {"betas": settings.betas, "eps": settings.eps}
    try:
        return create_optimizer_v2(
            groups(model, settings),
            settings.name,
            lr=rate(settings, batch),
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
            **{key: value for key, value in extra.items() if value is not None},
        )
    except (AssertionError, ImportError, ValueError) as error:  # some want a GPU, or a package of their own
        told = str(error).rstrip(".") or type(error).__name__
        raise GlocalError(f"optimiser {settings.name} cannot be made: {told}. Choose another optim.name.") from None


def rate(settings: OptimSettings, batch: int) -> float:
    """Scale the learning rate to the batch, where a base batch is given."""
    return settings.lr if settings.base_batch is None else settings.lr * batch / settings.base_batch


def groups(model: nn.Module, settings: OptimSettings) -> list[dict[str, Any]]:
    """Sort parameters by weight decay and rate; timm's schedules read `lr_scale`."""
    spared = _spared(model) | set(settings.no_weight_decay)
    scales = _own_scales(model)
    layers = _layer_scales(model, settings.layer_decay)
    made: dict[tuple[float, float], dict[str, Any]] = {}
    for name, each in model.named_parameters():
        if not each.requires_grad:
            continue
        plain = each.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, pattern) for pattern in spared)
        decay = 0.0 if plain else settings.weight_decay
        scale = scales.get(name, 1.0) * layers.get(name, 1.0)
        group = made.setdefault((decay, scale), {"params": [], "weight_decay": decay, "lr_scale": scale})
        group["params"].append(each)
    return list(made.values())


def _spared(model: nn.Module) -> set[str]:
    listed: Any = getattr(model, "no_weight_decay", None)
    return set() if listed is None else set(listed())


def _own_scales(model: nn.Module) -> dict[str, float]:
    """Read what modules say of their own rates: `lr_scale = {"offset": 0.01}` means the child `offset`."""
    scales: dict[str, float] = {}
    for path, module in model.named_modules():
        # Asked of the class, or of what was set on the module itself: wrappers pass unknown attributes on to what they
        # wrap, which is visited anyway.
        said = module.__dict__.get("lr_scale") or getattr(type(module), "lr_scale", None) or {}
        for child, scale in said.items():
            start = f"{path}.{child}" if path else child
            inside = [n for n, _ in model.named_parameters() if n == start or n.startswith(f"{start}.")]
            scales |= {n: scales.get(n, 1.0) * scale for n in inside}
    return scales


def _layer_scales(model: nn.Module, decay: float | None) -> dict[str, float]:
    matcher: Any = getattr(model, "group_matcher", None)
    if decay is None:
        return {}
    if matcher is None:
        raise GlocalError(
            f"{type(model).__name__} does not tell its layers, so optim.layer_decay cannot work. Leave it out."
        )
    layer_of: Any = group_parameters(model, matcher(coarse=False), reverse=True)
    last = max(layer_of.values())
    return {name: decay ** (last - layer) for name, layer in layer_of.items()}


def schedule(optimizer: Optimizer, settings: OptimSettings, epochs: int, steps: int) -> Any:
    """Build timm's schedule, stepped once per optimiser step."""
    if settings.schedule == "step":
        return _Stairs(optimizer, settings, epochs, steps)
    milestones = list(settings.decay_epochs) if settings.schedule == "multistep" else []
    scheduler, _ = create_scheduler_v2(
        optimizer,
        sched="multistep" if settings.schedule == "constant" else settings.schedule,
        num_epochs=max(epochs - settings.cooldown_epochs, 1),  # pyright: ignore[reportArgumentType]
        decay_milestones=milestones,  # pyright: ignore[reportArgumentType]
        decay_rate=settings.decay_rate,
        min_lr=settings.min_lr,
        warmup_lr=settings.warmup_lr,
        warmup_epochs=settings.warmup_epochs,  # pyright: ignore[reportArgumentType]
        step_on_epochs=False,
        updates_per_epoch=steps,
    )
    return scheduler


class _Stairs(StepLRScheduler):
    """timm's falling by steps, which by itself knows neither a lowest rate nor last epochs at the final one."""

    def __init__(self, optimizer: Optimizer, settings: OptimSettings, epochs: int, steps: int) -> None:
        self.last = round((epochs - settings.cooldown_epochs) * steps) - 1
        self.lowest = settings.min_lr
        super().__init__(
            optimizer,
            decay_t=settings.decay_epochs[0] * steps,
            decay_rate=settings.decay_rate,
            warmup_t=settings.warmup_epochs * steps,  # pyright: ignore[reportArgumentType]
            warmup_lr_init=settings.warmup_lr,
            warmup_prefix=False,
            t_in_epochs=False,
        )

    def _get_lr(self, t: int) -> list[float]:
        rates = super()._get_lr(min(t, max(self.last, self.warmup_t)))
        if t < self.warmup_t:
            return rates
        return [max(rate, min(self.lowest, base)) for rate, base in zip(rates, self.base_values, strict=True)]
