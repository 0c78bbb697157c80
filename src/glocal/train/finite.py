"""Find what is not a number: the step is known, this names the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.train.shard import local


def check_loss(loss: Tensor, step: int, model: nn.Module, again: Callable[[], Any]) -> None:
    """Raise when a loss is not finite, naming the first module whose output is not; `again` repeats the pass."""
    if torch.isfinite(loss):
        return
    raise GlocalError(f"the loss is {loss.item()} at step {step}: {_first_output(model, again)}. {_ADVICE}")


def check_gradients(model: nn.Module, step: int) -> None:
    """Raise when a gradient is not finite, naming its parameter."""
    for name, each in model.named_parameters():
        if each.grad is not None and not torch.isfinite(local(each.grad)).all():
            raise GlocalError(f"the gradient of {name} is not finite at step {step}. {_ADVICE}")


_ADVICE = "Earlier checkpoints are intact. Lower optim.lr, set optim.clip, or use precision: fp32."


def _first_output(model: nn.Module, again: Callable[[], Any]) -> str:
    for name, each in model.named_parameters():
        if not torch.isfinite(local(each)).all():
            return f"the weight {name} is not finite"
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            fed = all(torch.isfinite(x).all() for x in inputs if isinstance(x, Tensor) and x.is_floating_point())
            if not found and isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(
                    f"the output of {name} is the first that is not finite" if fed else "the images are not finite"
                )

        return hook

    handles = [
        m.register_forward_hook(look(n or "the model")) for n, m in model.named_modules() if not list(m.children())
    ]
    try:
        with torch.no_grad():
            again()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "every module's output is finite, so it arises in the loss itself"
