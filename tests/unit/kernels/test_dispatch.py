from __future__ import annotations

import pytest
import torch
from torchvision.ops import deform_conv2d as torchvision_deform

from glocal.kernels import dispatch
from glocal.kernels.deform import deform_conv2d_reference
from glocal.kernels.depthwise import depthwise
from glocal.lattice import Lattice


def test_the_cpu_keeps_to_plain_pytorch() -> None:
    tokens = torch.randn(1, 5, 4, requires_grad=True)
    assert not dispatch.fused(tokens)
    assert not dispatch.pays(tokens)


def test_kernels_can_be_switched_off_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dispatch._switch, "on", True)
    with dispatch.plain():
        assert not dispatch._switch["on"]
    assert dispatch._switch["on"]


def test_the_working_type_is_autocasts_own() -> None:
    tokens = torch.randn(1, 5, 4)
    assert dispatch.working_type(tokens) is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert dispatch.working_type(tokens) is torch.bfloat16


def test_prefix_tokens_pass_the_depthwise_convolution_as_they_are() -> None:
    lattice = Lattice(2, 3, prefix=2)
    tokens = torch.randn(2, 8, 4)
    out = depthwise(tokens, torch.randn(4, 1, 3, 3), lattice)
    assert torch.equal(out[:, :2], tokens[:, :2])
    assert not torch.allclose(out[:, 2:], tokens[:, 2:])


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
