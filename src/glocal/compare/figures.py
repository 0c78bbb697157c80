"""What a variant costs to run and to train, measured on this machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from glocal.measure.cost import cost


@dataclass(frozen=True)
class Figures:
    """Cost of one variant."""

    params: int
    gmacs: float
    latency_ms: float
    """Median time of one image, batch 1, evaluation."""
    memory_mb: float
    """One training step: its peak on a GPU; on a processor what it must hold (weights, gradients, optimiser, saved)."""


def measure(model: nn.Module, size: tuple[int, int], channels: int, batch: int) -> Figures:
    """Count and time a model where it is."""
    counted = cost(model, size)
    device = next(model.parameters()).device
    image = torch.randn(1, channels, *size).to(device)
    return Figures(
        counted.params,
        counted.gmacs,
        1000 * _latency(model, image),
        _memory(model, image.expand(batch, -1, -1, -1)) / 2**20,
    )


def _latency(model: nn.Module, image: Tensor, repeats: int = 30) -> float:
    training = model.training
    model.eval()
    times: list[float] = []
    with torch.inference_mode():
        for _ in range(repeats + 5):
            began = time.perf_counter()
            model(image)
            if image.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    model.train(training)
    return median(times[5:])


def _memory(model: nn.Module, images: Tensor) -> float:
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    model.train()
    if images.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        model(images).sum().backward()
        model.zero_grad()
        return torch.cuda.max_memory_allocated() + 2 * weights  # the optimiser's two moments
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    return 4 * weights + sum(size for place, size in saved.items() if place not in own)
