"""Inference on a processor overwrites what it made itself, and nothing that anybody else holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from glocal.lattice import Lattice
from glocal.mechanisms.life import LocalQKV, MultiScaleQKV

LATTICE = Lattice(3, 5, prefix=2)


def _tokens(dim: int = 12, images: int = 2) -> Tensor:
    return torch.randn(images, len(LATTICE), dim, generator=torch.Generator().manual_seed(3))


def _local() -> LocalQKV:
    local = LocalQKV(nn.Linear(12, 36), (3, 4, 5), (1, 3, 5))
    for weight in local.depthwise.parameters():
        nn.init.normal_(weight)
    return local


MODULES = {
    "life": lambda: MultiScaleQKV(12, (4, 4, 4), (1, 3, 5)),
    "uneven, convolved at once": lambda: MultiScaleQKV(12, (2, 6, 4), (3, 1, 5)),
    "released keys": lambda: MultiScaleQKV(12, (4, 4, 4), (1, 3, 5), aux_key_first=True),
    "preserved": _local,
}


@pytest.mark.parametrize("name", MODULES)
def test_inference_equals_what_autograd_records(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)  # a bias that starts at zero could be forgotten
    tokens = _tokens().double()
    before = tokens.clone()
    recorded = module(tokens, LATTICE)
    assert recorded.requires_grad
    for guard in (torch.no_grad, torch.inference_mode):
        with guard():
            torch.testing.assert_close(module(tokens, LATTICE), recorded.detach(), rtol=1e-12, atol=1e-12)
            assert torch.equal(tokens, before)


@pytest.mark.parametrize("name", MODULES)
def test_a_hook_may_keep_what_a_layer_gave(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _, __, out, path=path: kept.update({path: (out, out.clone())}))
    with torch.inference_mode():
        module(_tokens(), LATTICE)
    assert kept
    assert all(torch.equal(out, then) for out, then in kept.values())


def test_a_layer_put_in_place_of_another_is_called() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    torch.manual_seed(0)
    module = MultiScaleQKV(12, (4, 4, 4), (1, 3, 5))
    other = MultiScaleQKV(12, (4, 4, 4), (1, 3, 5))
    other.load_state_dict(module.state_dict())
    doubled = Doubled(12, 12)
    doubled.load_state_dict(module.pointwise[0].state_dict())
    other.pointwise[0] = doubled
    with torch.inference_mode():
        torch.testing.assert_close(other(_tokens(), LATTICE), 2 * module(_tokens(), LATTICE))


@pytest.mark.parametrize("name", MODULES)
def test_autocast_and_vmap_reach_it(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    tokens = _tokens()
    with torch.no_grad():
        whole = module(tokens, LATTICE)
        one_by_one = torch.func.vmap(lambda image: module(image[None], LATTICE)[0])(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            half = module(tokens, LATTICE)
    torch.testing.assert_close(one_by_one, whole)
    assert half.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(half.float().flatten(), whole.flatten(), dim=0) > 0.999
