from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.utils import counters

import glocal
from glocal.optimize import compile_training


def model() -> nn.Module:
    host = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3)
    return glocal.enhance(host, *glocal.named("life+local-ffn")).eval()


def test_the_optimised_copy_is_folded_and_the_original_untouched() -> None:
    plain = model()
    fast = glocal.optimize(plain)
    assert not any(isinstance(each, nn.BatchNorm2d) for each in fast.modules())
    assert any(isinstance(each, nn.BatchNorm2d) for each in plain.modules())


@pytest.mark.slow
def test_the_optimised_copy_gives_the_same_numbers() -> None:
    plain, images = model(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(glocal.optimize(plain)(images), plain(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graphs", [False, True])
def test_training_is_traced_without_cudnns_attention_which_is_put_back(
    monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    seen = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: list, config_patches: dict) -> object:
        seen.append((torch.backends.cuda.cudnn_sdp_enabled(), *config_patches.values()))
        assert list(config_patches) == ["layout_optimization", "triton.cudagraphs"]
        if len(seen) == 3:
            raise RuntimeError("cannot")
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    run = compile_training(nn.Linear(3, 2), graphs=graphs)
    again = pickle.loads(pickle.dumps(copy.deepcopy(run)))
    first = run(torch.ones(1, 3))
    torch.compiler.reset()  # or the copy finds what the first has compiled
    assert torch.equal(again(torch.ones(1, 3)), first)
    assert seen == [(False, False, graphs)] * 2
    torch.compiler.reset()
    with pytest.raises(Exception, match="cannot"):
        compile_training(nn.Linear(3, 2))(torch.ones(1, 3))
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_what_torch_keeps_of_other_compilations_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may hold cuDNN's attention: which kind was allowed is no part of torch's key."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain, found = model().train(), []
    inductor = {"layout_optimization": False, "triton.cudagraphs": False}
    for compiled in (torch.compile(plain, options=inductor), compile_training(plain), compile_training(plain)):
        torch.compiler.reset()
        counters.clear()
        compiled(torch.randn(2, 3, 32, 32)).sum().backward()
        found.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert found == [0, 0, 1]


def test_equal_models_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: seen.append(graph) or graph.forward
    )
    torch.compiler.reset()
    for _ in range(12):  # more than the number after which torch.compile gives up
        compile_training(nn.Linear(3, 2))(torch.ones(1, 3))
    assert len(seen) == 1


def test_compiled_training_has_the_gradients_of_eager_training() -> None:
    plain, images = model().train(), torch.randn(4, 3, 32, 32)
    found = []
    for run in (plain, compile_training(plain)):
        plain.zero_grad()
        run(images).square().mean().backward()
        found.append({name: p.grad.clone() for name, p in plain.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-3, atol=1e-6, msg=name)
