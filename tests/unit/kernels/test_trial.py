"""Kernels are used only where they gave right numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from glocal.kernels import trial


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    trial._passes.cache_clear()
    yield
    trial._passes.cache_clear()


def _giving(monkeypatch: pytest.MonkeyPatch, errors: list[float]) -> None:
    monkeypatch.setattr(trial, "deviations", lambda *_, **__: iter([(str(i), e) for i, e in enumerate(errors)]))


@pytest.mark.parametrize("errors", [[0.001, 0.5], [0.001, float("nan")], [float("nan"), 0.001]])
def test_wrong_numbers_keep_kernels_off_and_are_told_once(monkeypatch: pytest.MonkeyPatch, errors: list[float]) -> None:
    _giving(monkeypatch, errors)
    with pytest.warns(UserWarning, match=r"tokens kernels stay off on cpu in bfloat16: their numbers are .*% off"):
        assert not trial.trusted("tokens", torch.bfloat16, "cpu", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not trial.trusted("tokens", torch.bfloat16, "cpu", None)


def test_a_compiler_that_gives_up_keeps_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Iterator[tuple[str, float]]:
        raise RuntimeError("out of resource: shared memory\nand more")

    monkeypatch.setattr(trial, "deviations", broken)
    with pytest.warns(
        UserWarning, match="stay off on cpu in float16: RuntimeError: out of resource: shared memory. Plain"
    ):
        assert not trial.trusted("deform", torch.float16, "cpu", None)


def test_a_device_without_room_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> Iterator[tuple[str, float]]:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(trial, "deviations", full)
    assert not trial.trusted("tokens", torch.bfloat16, "cpu", None)
    _giving(monkeypatch, [0.0])
    assert trial.trusted("tokens", torch.bfloat16, "cpu", None)


def test_a_kernel_that_lost_its_gradient_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = ("x", lambda x: x.detach() * 2, lambda x: x * 2, [torch.randn(2, 3)])
    monkeypatch.setattr(trial, "_tokens", lambda *_: iter([lost]))
    with pytest.warns(UserWarning, match="stay off"):
        assert not trial.trusted("tokens", torch.float32, "cpu", None)


def test_right_numbers_let_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _giving(monkeypatch, [0.0, 0.004])
    assert trial.trusted("tokens", torch.bfloat16, "cpu", None)


def test_a_trial_while_tracing_works_on_real_tensors_and_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def square(x: Tensor) -> Tensor:
        seen.append((type(x), x.requires_grad, torch.is_autocast_enabled("cpu")))
        return x * x

    monkeypatch.setattr(trial, "_tokens", lambda make, *_: iter([("x", square, square, [make(2, 3)])]))

    @torch.compile(fullgraph=True, backend="eager")
    def doubled(x: Tensor) -> Tensor:
        return x * 2 if trial.trusted("tokens", x.dtype, x.device.type, x.device.index) else x

    x = torch.ones(3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(doubled(x), 2 * x)
    with torch.inference_mode():
        assert trial.trusted("tokens", torch.float16, "cpu", None)
    with torch.no_grad(), FakeTensorMode():
        assert trial.trusted("tokens", torch.bfloat16, "cpu", None)
    assert len(seen) == 12
    assert set(seen) == {(Tensor, True, False)}


def test_the_trial_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(trial, "_tokens", lambda make, *_: iter([("x", lambda x: x, lambda x: x, [make(2, 3)])]))
        found = dict(trial.deviations("tokens", torch.device("cpu"), torch.float32, images=1))
    assert found == {"x: result": 0.0, "x: gradient 1": 0.0}
    assert torch.equal(torch.get_rng_state(), before)
