"""Enhanced models under DistributedDataParallel, and on an accelerator."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from glocal import LIFE, ContextBroadcast, LocalFFN, enhance
from tests.contract.cases import HOSTS, error, host, images, lively
from tests.contract.test_lifecycle import mixture

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")]


@pytest.fixture
def lone_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["vit_registers", "swinv2", "pvt_v2"])
def test_data_parallel_gives_the_same_gradients(lone_process: None, name: str) -> None:
    mechanisms = (LocalFFN(), ContextBroadcast(scaled=True), *(() if name == "pvt_v2" else (LIFE(),)))
    alone = lively(enhance(host(name), *mechanisms)).train()
    for module in alone.modules():
        if type(module).__name__ in ("DropPath", "Dropout"):
            module.eval()
    together = DistributedDataParallel(copy.deepcopy(alone))
    for model in (alone, together):
        model(images(name)).square().mean().backward()
    wanted, got = dict(alone.named_parameters()), dict(together.module.named_parameters())
    assert all(torch.allclose(got[key].grad, wanted[key].grad) for key in wanted if wanted[key].grad is not None)


def test_local_ffn_behind_a_class_token_is_idle_but_does_not_stall_data_parallel(lone_process: None) -> None:
    """The paper's form bypasses the class token, so nobody reads the last block's network: its gradients are zero."""
    model = DistributedDataParallel(enhance(host("vit"), LocalFFN()).train())
    for _ in range(2):
        model(images("vit")).sum().backward()
    idle = [name for name, each in model.module.named_parameters() if each.grad is None or not each.grad.any()]
    last = [name for name, _ in model.module.named_parameters() if name.startswith("blocks.1.mlp.")]
    assert set(last) <= set(idle)
    assert not any(name.startswith("blocks.0.") for name in idle)


class TestOnAccelerator:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("name", HOSTS)
    def test_outputs_equal_the_cpus(self, name: str) -> None:
        model, x = mixture(name), images(name)
        with torch.no_grad():
            assert error(copy.deepcopy(model).cuda()(x.cuda()).cpu(), model(x)) <= 1e-3

    @pytest.mark.parametrize("name", HOSTS)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_mixed_precision_trains(self, name: str, dtype: torch.dtype) -> None:
        model = _on_gpu(mixture(name)).train()
        with torch.autocast("cuda", dtype=dtype):
            out = model(images(name).cuda())
        out = out[0] if isinstance(out, tuple) else out
        out.float().square().mean().backward()
        assert all(each.grad.isfinite().all() for each in model.parameters() if each.grad is not None)

    @pytest.mark.parametrize("name", ["vit", "swinv2", "pvt_v2"])
    def test_a_compiled_model_gives_the_same(self, name: str) -> None:
        model, x = _on_gpu(mixture(name)), images(name).cuda()
        torch._dynamo.reset()
        with torch.no_grad():
            assert error(torch.compile(model, fullgraph=True)(x), model(x)) <= 1e-3


def _on_gpu(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).cuda()
