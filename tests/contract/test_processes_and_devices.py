"""Enhanced models under DistributedDataParallel, and on an accelerator."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from glocal import LIFE, ContextBroadcast, LocalFFN, enhance
from glocal.models.positions import RelativeAttention
from glocal.optimize import compile_training
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

    @pytest.mark.parametrize("compiled", [False, True])
    def test_relative_biases_learn_what_they_learn_on_the_cpu(self, compiled: bool) -> None:
        """14 x 14 tokens: rows of 196 numbers, which fused attention takes padded only."""
        alone = lively(RelativeAttention(64, 2, (14, 14)))
        there, x = _on_gpu(alone), torch.randn(3, 196, 64)
        torch._dynamo.reset()
        run = compile_training(there) if compiled else there
        alone(x, (14, 14)).square().mean().backward()
        with torch.autocast("cuda", torch.bfloat16):
            out = run(x.cuda(), (14, 14))
        out.float().square().mean().backward()
        for name, parameter in there.named_parameters():
            wanted = alone.get_parameter(name).grad
            assert parameter.grad is not None and wanted is not None
            assert (parameter.grad.cpu() - wanted).norm() <= 0.03 * wanted.norm() + 1e-6, name
        with profile(activities=[ProfilerActivity.CUDA]) as seen, torch.autocast("cuda", torch.bfloat16):
            run(x.cuda(), (14, 14))
            torch.cuda.synchronize()
        assert any("fmha" in row.key for row in seen.key_averages()), [row.key for row in seen.key_averages()]


def _on_gpu(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).cuda()
