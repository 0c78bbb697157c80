"""How fast: a host beside its variants in one interleaved run, median and spread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median, quantiles
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal import papers
from glocal.enhance import fold
from glocal.errors import GlocalError, nearest
from glocal.mechanisms import named, spelled
from glocal.optimize import compile_training, optimize
from glocal.zoo import create_model

Mode = Literal["eager", "folded", "compiled", "optimised"]
SHORT, TURN = 50.0, 3  # milliseconds of a call that is repeated in its turn, and how often
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Timing:
    """Times of one model in milliseconds: median, quartiles, and the median ratio to the host in the same round."""

    median: float
    low: float
    high: float
    ratio: float
    memory: float | None
    """Peak device memory of one call in MiB; None on the CPU."""


@dataclass(frozen=True)
class Setting:
    """What is timed: the mode, the batch, the image size, and a training step or inference."""

    mode: Mode = "eager"
    batch: int = 1
    size: tuple[int, int] = (224, 224)
    train: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    graphs: bool = False


def interleave(
    calls: dict[str, Callable[[], object]], *, device: str = "cpu", rounds: int = 20, warmup: int = 3
) -> dict[str, Timing]:
    """Time callables turn by turn, so that a slow minute of the machine falls on all of them; the first is the host."""
    for call in calls.values():
        for _ in range(warmup):
            call()
    memory = {name: _memory(call, device) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_turn(call, device))
    host = next(iter(times.values()))
    return {name: _summary(taken, host, memory[name]) for name, taken in times.items()}


def time_models(
    models: dict[str, nn.Module], setting: Setting, *, rounds: int = 20, seed: int = 0
) -> dict[str, Timing]:
    """Time models under one setting; the first is the host."""
    torch.manual_seed(seed)
    images = torch.randn(setting.batch, 3, *setting.size).to(setting.device)
    calls = {name: _tried(name, model, images, setting) for name, model in models.items()}
    return interleave(calls, device=setting.device, rounds=rounds)


def speed_rows(
    host: str, variants: Sequence[str], settings: Sequence[Setting], *, rounds: int = 20, against: str | None = None
) -> Iterator[dict[str, Any]]:
    """Time a host, its variants and another model or module, setting by setting; rows as a table wants them."""
    grafts = [named(variant) for variant in variants]
    for setting in settings:
        models = {"": _build(host, setting)}
        models |= {spelled(*each): _build(host, setting, *each) for each in grafts}
        if against:
            place = ":" in against and not against.startswith(("hf-hub:", "local-dir:"))  # those are timm's
            models[against] = _imported(against) if place else _build(against, setting)
        for name, timing in time_models(models, setting, rounds=rounds).items():
            yield _row(host, name, setting, timing, other=name == against)
        torch.compiler.reset()


def _build(host: str, setting: Setting, *mechanisms: Any) -> nn.Module:
    try:
        return create_model(host, *mechanisms, img_size=setting.size)
    except TypeError:  # a host that takes any size has no such argument
        return create_model(host, *mechanisms)


def _imported(place: str) -> nn.Module:
    """Call another package's builder: `package.module:callable`."""
    module, _, name = place.partition(":")
    try:
        model = getattr(import_module(module), name)()
    except (Exception, SystemExit) as error:  # somebody else's code
        raise GlocalError(
            f"cannot build {place!r}: {type(error).__name__}: {str(error).strip().split(chr(10))[0]}. "
            f"Write package.module:callable; it is called bare."
        ) from None
    if not isinstance(model, nn.Module):
        raise GlocalError(f"{place} gives a {type(model).__name__}, not a torch module.")
    return model


def _tried(name: str, model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], object]:
    """Run a model once under a setting: what it does not take is told before any time is spent on the others."""
    try:
        call = _call(model, images, setting)
        call()
    except GlocalError:
        raise
    except Exception as error:  # each host has its own kinds, and so has somebody else's code
        shape, reason = "x".join(map(str, images.shape)), str(error).strip().split("\n")[0]
        step = f"{setting.mode} {'step' if setting.train else 'inference'}"
        raise GlocalError(
            f"{name or 'the host'} fails in {setting.dtype}, {step}, on images of {shape}: "
            f"{type(error).__name__}: {reason} Try another --size, --batch or --mode, or leave it out."
        ) from error
    return call


def _call(model: nn.Module, images: Tensor, setting: Setting) -> Callable[[], object]:
    kind = TYPES.get(setting.dtype)
    if kind is None:
        raise GlocalError(
            f"unknown type {setting.dtype!r}.{nearest(setting.dtype, TYPES)} There are: {', '.join(TYPES)}."
        )
    model = model.to(setting.device)
    return _step(model, images, setting, kind) if setting.train else _inference(model, images.to(kind), setting, kind)


def _inference(model: nn.Module, images: Tensor, setting: Setting, kind: torch.dtype) -> Callable[[], object]:
    run = model.eval().to(kind)
    if setting.mode == "folded":
        run = fold(run)
    elif setting.mode == "optimised":
        run = optimize(run, graphs=setting.graphs, dynamic=False)
    elif setting.mode == "compiled":
        run = _compiled(run, setting)

    def call() -> object:
        with torch.inference_mode():
            return run(images)

    return call


def _step(model: nn.Module, images: Tensor, setting: Setting, kind: torch.dtype) -> Callable[[], object]:
    """One training step: forward, backward and AdamW, under autocast where the type is a half one."""
    model = model.train()
    run = compile_training(model, graphs=setting.graphs, dynamic=False) if setting.mode == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=setting.device != "cpu")
    labels = torch.zeros(setting.batch, dtype=torch.long, device=setting.device)

    def call() -> object:
        half = kind != torch.float32
        with torch.autocast(setting.device, kind) if half else contextlib.nullcontext():
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return call


def _compiled(model: nn.Module, setting: Setting) -> nn.Module:
    mode = "reduce-overhead" if setting.graphs else None
    return cast("nn.Module", torch.compile(model, mode=mode, dynamic=False))


def _turn(call: Callable[[], object], device: str) -> float:
    """Time a model's turn: short calls follow each other, as where a model is in use, and the median counts.

    The first finds other models' weights in the processor's memories, and is not counted.
    """
    first = _once(call, device)
    return first if first > SHORT else median(_once(call, device) for _ in range(TURN))


def _once(call: Callable[[], object], device: str) -> float:
    """Time one call in milliseconds, with device events where there are any."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _memory(call: Callable[[], object], device: str) -> float | None:
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _summary(taken: list[float], host: list[float], memory: float | None) -> Timing:
    low, _, high = quantiles(taken, n=4) if len(taken) > 1 else (taken[0],) * 3
    ratio = median(mine / theirs for mine, theirs in zip(taken, host, strict=True))
    return Timing(median(taken), low, high, ratio, memory)


def _row(host: str, name: str, setting: Setting, timing: Timing, *, other: bool) -> dict[str, Any]:
    printed = {} if other else _printed(host, name, setting)
    return {
        "model": name if other else f"+ {name}" if name else host,
        "mode": setting.mode + (" step" if setting.train else ""),
        "dtype": setting.dtype,
        "batch": setting.batch,
        "size": "x".join(map(str, setting.size)),
        "ms": timing.median,
        "low": timing.low,
        "high": timing.high,
        "ratio": timing.ratio,
        "images_s": setting.batch / timing.median * 1e3,
        "memory": timing.memory,
        **printed,
    }


def _printed(host: str, name: str, setting: Setting) -> dict[str, Any]:
    """Find the paper's latency (LIFE, Table 5: one image of 224 pixels) for this very model."""
    if setting.train or (setting.batch, setting.size, setting.dtype) != (1, (224, 224), "float32"):
        return {}
    column = "cpu_ms" if setting.device == "cpu" else "gpu_ms"
    rows = [row for row in papers.table("life", 5) if row.host == host and column in row.metrics]
    mine = next((row for row in rows if row.mechanisms == name), None)
    plain = next((row for row in rows if not row.mechanisms), None)
    if mine is None or plain is None:
        return {}
    return {"paper_ms": mine.metrics[column], "paper_ratio": mine.metrics[column] / plain.metrics[column]}
