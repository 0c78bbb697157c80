"""Nothing in a pass strays from the GPU or makes it wait: found out with tensors that only claim to be there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glocal import enhance, fold
from glocal.kernels.dispatch import plain
from glocal.measure.accuracy import Tally
from glocal.measure.segmentation import PixelTally
from tests.contract.cases import HOSTS, MECHANISMS, fitting, host
from tests.contract.test_lifecycle import ALL
from tests.contract.test_new_hosts import NEW

# DINOv3 of transformers keeps a map of places from pass to pass, which would be one of another mode's fakes.
every_faked_host = pytest.mark.parametrize("name", [name for name in HOSTS if name != "hf_dinov3"])
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and torch.__version__ < (2, 9),
    reason="torch 2.8 wants a driver even for a convolution that nobody computes",
)
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "bincount")


class Stray(TorchDispatchMode):
    """Lists the operations whose tensors are not all on the GPU, and those that need their numbers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor)]
        if any(each.device.type != "cuda" for each in tensors) or any(word in str(func) for word in _WAITS):
            self.found.add(str(func))
        return out


@contextmanager
def half() -> Iterator[None]:
    """Autocast as on a GPU, which torch.autocast refuses where there is none."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


def on_gpu(model: nn.Module) -> nn.Module:
    """Copy a model, inside a FakeTensorMode, with every parameter and buffer on a GPU that need not be there."""
    memo: dict[int, Any] = {id(each): _like(each) for each in model.buffers()}
    memo |= {id(each): nn.Parameter(_like(each)) for each in model.parameters()}
    return copy.deepcopy(model, memo)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")


def strays(model: nn.Module, size: tuple[int, int]) -> set[str]:
    """Pass fake images through a model: as it trains in half precision, and folded."""
    found: set[str] = set()
    with plain():
        for each, train in ((model, True), (fold(model), False)):
            with FakeTensorMode():
                moved, images = on_gpu(each).train(train), torch.empty(2, 3, *size, device="cuda")
                with Stray() as stray, half():
                    moved(images)
            found |= stray.found
    return found


@every_faked_host
def test_a_pass_stays_on_the_gpu(name: str) -> None:
    assert not strays(enhance(host(name), *ALL[name]), HOSTS[name].size)


@every_faked_host
def test_a_pass_of_preserving_grafts_stays_on_the_gpu(name: str) -> None:
    fit = [MECHANISMS[each] for there, each in fitting(preserve=True) if there == name and each != "cbs"]  # cbs_both
    assert not strays(enhance(host(name), *fit, preserve=True), HOSTS[name].size)


@pytest.mark.parametrize("mechanism", [each for name, each in fitting() if name == "vit"])
def test_a_pass_of_each_mechanism_stays_on_the_gpu(mechanism: str) -> None:
    assert not strays(enhance(host("vit"), MECHANISMS[mechanism]), HOSTS["vit"].size)


@pytest.mark.parametrize("name", NEW)
def test_a_pass_of_our_own_hosts_stays_on_the_gpu_at_another_size(name: str) -> None:
    assert not strays(NEW[name].build(), (48, 32))


def test_counting_answers_does_not_wait_for_the_gpu() -> None:
    with FakeTensorMode():
        labels, map_ = (torch.empty(size, dtype=torch.long, device="cuda") for size in ((4,), (8, 8)))
        answers, tally = torch.empty(4, 5, device="cuda"), Tally(5, "cuda")
        pixels = PixelTally(5, 255, torch.device("cuda"))
        with Stray() as stray:
            tally.add(answers, labels)
            pixels.add(map_, map_)
    assert not stray.found
