"""A product goes to the faster library only where the numbers stay and nobody follows what is called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from glocal.kernels import product as place
from glocal.kernels.product import WORTH, product


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Take the operator on any processor that has it, and count how often."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this PyTorch has no oneDNN")
    calls: list[int] = []
    found = place._by_onednn
    monkeypatch.setattr(place, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(place, "_by_onednn", lambda *given: found(*given) and not calls.append(1))
    return lambda: len(calls)


def _given(images: int = 2, tokens: int = 65, width: int = 128, out: int = 192) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    assert images * tokens * width * out >= WORTH
    shapes = ((images, tokens, width), (out, width), (out,))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("biased", [True, False])
def test_the_product_is_that_of_linear(by_onednn: Callable[[], int], biased: bool) -> None:
    tokens, matrix, bias = _given()
    exact = torch.nn.functional.linear(tokens.double(), matrix.double(), bias.double() if biased else None)
    with torch.inference_mode():
        for each in (tokens, tokens.transpose(0, 1).contiguous().transpose(0, 1), tokens[:, :, :].flatten(0, 1)):
            found = product(each, matrix, bias if biased else None)
            torch.testing.assert_close(found.double().view_as(exact), exact, rtol=1e-5, atol=1e-4)
    assert by_onednn() == 3


def test_a_matrix_that_is_a_part_of_another_is_taken_as_it_is(by_onednn: Callable[[], int]) -> None:
    tokens, matrix, bias = _given()
    wide = torch.randn(192, 256, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for each in (wide[:, ::2], wide[:, 128:], matrix.t().contiguous().t()):
            torch.testing.assert_close(
                product(tokens, each, bias), torch.nn.functional.linear(tokens, each, bias), rtol=1e-5, atol=1e-4
            )
    assert by_onednn() == 3


def test_whoever_follows_operations_sees_a_product(by_onednn: Callable[[], int]) -> None:
    tokens, matrix, bias = _given()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        product(tokens, matrix, bias)
    assert counter.get_total_flops() == 2 * tokens.numel() * len(matrix)
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: product(x, matrix, bias), (tokens,), check_trace=False)
        assert "mkldnn" not in str(traced.graph)
        torch.func.vmap(lambda x: product(x, matrix, bias))(tokens)
    product(tokens.requires_grad_(), matrix, bias).sum().backward()
    assert tokens.grad is not None
    assert by_onednn() == 0


def test_few_tokens_and_other_types_go_to_linear(by_onednn: Callable[[], int]) -> None:
    tokens, matrix, bias = _given()
    with torch.inference_mode():
        product(tokens[:, :4], matrix, bias)
        product(tokens.double(), matrix.double(), bias.double())
        product(tokens.bfloat16(), matrix.bfloat16(), bias.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            assert product(tokens, matrix, bias).dtype == torch.bfloat16
        with torch.backends.mkldnn.flags(enabled=False):
            product(tokens, matrix, bias)
    assert by_onednn() == 0
