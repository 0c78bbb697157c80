from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision.ops import deform_conv2d as torchvision_deform

from glocal.kernels import dispatch
from glocal.kernels.deform import deform_conv2d, deform_conv2d_reference
from glocal.kernels.depthwise import depthwise
from glocal.lattice import Lattice


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
