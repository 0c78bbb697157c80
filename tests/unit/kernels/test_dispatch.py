from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision.ops import deform_conv2d as torchvision_deform

from glocal.errors import LatticeError
from glocal.kernels import batch_hidden as batch_hidden_module
from glocal.kernels import depthwise as depthwise_module
from glocal.kernels import dispatch
from glocal.kernels import multi_scale as multi_scale_module
from glocal.kernels.deform import deform_conv2d, deform_conv2d_reference
from glocal.kernels.depthwise import depthwise, depthwise_groups
from glocal.kernels.hidden import hidden
from glocal.lattice import Lattice
from glocal.mechanisms.local_ffn import LocalFeedForward


def test_the_cpu_keeps_to_plain_pytorch() -> None:
    tokens = torch.randn(1, 5, 4, requires_grad=True)
    assert not dispatch.fused(tokens)
    assert not dispatch.pays(tokens)


class OnGpu:
    """What the dispatch asks of tokens, as if they lay on a GPU."""

    is_cuda, dtype, device = True, torch.bfloat16, torch.device("cuda", 0)

    def numel(self) -> int:
        return dispatch.MUCH


def test_kernels_can_be_switched_off_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(dispatch, "trusted", lambda *about: asked.append(about) or True)
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    tokens: Any = OnGpu()
    assert dispatch.fused(tokens)
    assert dispatch.pays(tokens)
    assert asked == [(family, torch.bfloat16, "cuda", 0) for family in ("deform", "tokens")]
    first, second = dispatch.plain(), dispatch.plain()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as two threads may do it
    assert not dispatch.fused(tokens)
    second.__exit__(None, None, None)
    assert dispatch.fused(tokens)


def test_kernels_stay_out_of_exported_graphs_and_of_other_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "trusted", lambda *_: True)
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    tokens: Any = OnGpu()
    monkeypatch.setattr(tokens, "dtype", torch.float64, raising=False)
    assert not dispatch.fused(tokens)
    answers = []

    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if dispatch._exporting() else x - 1

    for strict in (False, True):
        program = torch.export.export(Asks(), (torch.ones(2),), strict=strict)
        answers.append(program.module()(torch.ones(2)))
    answers.append(torch.compile(Asks(), backend="eager", fullgraph=True)(torch.ones(2)))
    assert [float(each[0]) for each in answers] == [2, 2, 0]


def test_torch_func_and_forward_mode_see_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "trusted", lambda *_: True)
    monkeypatch.setattr(dispatch, "_HAS_TRITON", True)
    tokens: Any = OnGpu()
    answers = []
    torch.func.vmap(lambda x: answers.append(dispatch.pays(tokens)) or x)(torch.ones(2))
    with torch.autograd.forward_ad.dual_level():
        answers.append(dispatch.pays(tokens))
    assert answers == [False, False]
    assert dispatch.pays(tokens)


@pytest.mark.parametrize("entry", ["depthwise", "multi_scale", "hidden", "batch_hidden", "batch_norm"])
def test_tokens_that_do_not_fill_the_lattice_reach_no_kernel(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (depthwise_module, multi_scale_module):
        monkeypatch.setattr(module, "pays", lambda *_: True)
    tokens, taps, lattice = torch.randn(2, 6, 4), torch.randn(4, 1, 3, 3), Lattice(3, 3, prefix=1)
    conv, norm, act = torch.nn.Conv2d(4, 4, 3, groups=4), torch.nn.BatchNorm2d(4), torch.nn.Hardswish()
    calls = {
        "depthwise": lambda: depthwise_groups(tokens, (taps,), (4,), 1, lattice),
        "multi_scale": lambda: multi_scale_module.multi_scale(tokens, [taps], [torch.ones(12, 4)], None, lattice),
        "hidden": lambda: hidden(tokens, conv, act, act, lattice, pool=False),
        "batch_hidden": lambda: batch_hidden_module.batch_hidden(tokens, (norm, norm), conv, act, [], lattice),
        "batch_norm": lambda: batch_hidden_module.batch_norm(tokens, norm, lattice),
    }
    with pytest.raises(LatticeError, match="6 tokens do not fill a 3x3 lattice"):
        calls[entry]()


@pytest.mark.parametrize(
    "listen",
    [
        lambda layer: layer.register_forward_hook(print),
        lambda layer: layer.register_forward_pre_hook(print),
        lambda layer: layer.register_full_backward_hook(print),
        lambda layer: layer.register_full_backward_pre_hook(print),
        lambda _: torch.nn.modules.module.register_module_full_backward_hook(print),
    ],
)
def test_a_layer_that_somebody_listens_to_is_not_bare(listen: Any) -> None:
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert dispatch.bare(*layers)
    handle = listen(layers[1])
    assert not dispatch.bare(*layers)
    handle.remove()
    assert dispatch.bare(*layers)


def _plain(norm: torch.nn.BatchNorm2d) -> None:
    pass


def _stops_following(norm: torch.nn.BatchNorm2d) -> None:
    norm.track_running_stats = False


def _forgets_its_count(norm: torch.nn.BatchNorm2d) -> None:
    norm.num_batches_tracked = None


def _averages_all(norm: torch.nn.BatchNorm2d) -> None:
    norm.momentum = None


@pytest.mark.parametrize("change", [_plain, _stops_following, _forgets_its_count, _averages_all])
def test_running_statistics_move_as_the_norms_own(change: Any) -> None:
    norms = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    for norm in norms:
        change(norm)
    for _ in range(3):
        x = 2 * torch.randn(4, 3, 2, 2) + 1
        norms[0](x)
        batch_hidden_module._follow(norms[1], x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0), 16)
    for wanted, found in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_single_value_is_left_to_batch_norm_to_refuse() -> None:
    network = LocalFeedForward(4, 8).train()
    assert not network._batch_fusable(torch.randn(1, 2, 4), Lattice(1, 1, prefix=1))
    with pytest.raises(ValueError, match="more than 1 value"):
        network(torch.randn(1, 2, 4), Lattice(1, 1, prefix=1))


def test_the_working_type_is_autocasts_own() -> None:
    tokens = torch.randn(1, 5, 4)
    assert dispatch.working_type(tokens) is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatch.working_type(tokens) is torch.bfloat16
    assert dispatch.working_type(tokens.to("meta")) is torch.float32


def test_prefix_tokens_pass_the_depthwise_convolution_as_they_are() -> None:
    lattice = Lattice(2, 3, prefix=2)
    tokens = torch.randn(2, 8, 4)
    out = depthwise(tokens, torch.randn(4, 1, 3, 3), lattice)
    assert torch.equal(out[:, :2], tokens[:, :2])
    assert not torch.allclose(out[:, 2:], tokens[:, 2:])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_taps_find_their_place_in_half_precision(kind: torch.dtype) -> None:
    side = 64  # 4,096 places; bfloat16 counts to 256 without gaps, float16 to 2,048
    x, weight = torch.randn(1, 2, side, side, dtype=kind), torch.randn(3, 2, 2, 2, dtype=kind)
    offset = torch.randn(1, 8, side // 2, side // 2, dtype=kind)
    wanted = torchvision_deform(x.float(), offset.float(), weight.float(), None, 2, 0)
    found = deform_conv2d_reference(x, offset, weight, None, 2, 0).float()
    assert (found - wanted).norm() / wanted.norm() < 0.02
    assert (deform_conv2d(x, offset, weight, None, 2, 0).float() - wanted).norm() / wanted.norm() < 0.02


def test_a_tap_that_did_not_move_has_torchvisions_slope() -> None:
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(4, 3, 2, 2)
    slopes = []
    for operator in (torchvision_deform, deform_conv2d_reference):
        offset = torch.zeros(1, 8, 3, 3, requires_grad=True)
        out = operator(x, offset, weight, None, 2, 0)
        out.square().sum().backward()
        slopes.append(offset.grad)
    assert slopes[0] is not None and slopes[0].abs().max() > 0.1
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
