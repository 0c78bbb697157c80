"""Sharding (FSDP): each process keeps a part of the weights, gradients and optimiser states."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer


class Shards:
    """A model spread over all processes, and the whole copy that is evaluated and saved in its place."""

    def __init__(self, model: nn.Module) -> None:
        self.whole = copy.deepcopy(model)
        self.model = model
        for block in _blocks(model):
            fully_shard(block)
        fully_shard(model)

    def gather(self) -> nn.Module:
        """Bring the present weights together in the whole copy, on every process."""
        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        self.whole.load_state_dict(state)
        return self.whole

    def states(self, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """Collect weights and optimiser states on the main process."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_state_dict(self.model, optimizer, options=options)  # pyright: ignore[reportReturnType]

    def restore(self, optimizer: Optimizer, model: dict[str, Any], states: dict[str, Any]) -> None:
        """Spread saved states over the processes again."""
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(self.model, optimizer, model_state_dict=model, optim_state_dict=states, options=options)

    def exchange(self, now: bool) -> None:
        """Exchange gradients at this backward pass, or keep them for a later one."""
        self.model.set_requires_gradient_sync(now)  # pyright: ignore[reportCallIssue]


def local(tensor: Tensor) -> Tensor:
    """Give this process's part of a tensor that may be spread."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore


def full(tensor: Tensor) -> Tensor:
    """Give the whole of a tensor that may be spread."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Find the repeated blocks: members of the lists of alike modules that lie in no other such list."""
    found: list[nn.Module] = []
    paths: list[str] = []
    for path, module in model.named_modules():
        members = list(module.children()) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
        alike = len(members) > 1 and len({type(each) for each in members}) == 1
        if alike and not any(path.startswith(f"{outer}.") for outer in paths):
            paths.append(path)
            found += [each for each in members if any(p.requires_grad for p in each.parameters())]
    return found
