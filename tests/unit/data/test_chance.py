"""Random numbers belong to an image: not to its batch, its process or the moment."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal.data.chance import keys, normal, number, uniform, uniforms


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), epoch=st.integers(0, 1000), first=st.integers(0, 50))
def test_draws_of_an_image_do_not_depend_on_its_batch(seed: int, epoch: int, first: int) -> None:
    index = torch.arange(64)
    whole = uniform(keys(seed, epoch, index), 5)
    part = uniform(keys(seed, epoch, index[first : first + 7]), 5)
    assert torch.equal(whole[first : first + 7], part)


def test_seed_epoch_index_copy_and_stream_all_change_the_draws() -> None:
    index = torch.arange(8)
    base = uniform(keys(0, 0, index), 4)
    others = [
        uniform(keys(1, 0, index), 4),
        uniform(keys(0, 1, index), 4),
        uniform(keys(0, 0, index + 8), 4),
        uniform(keys(0, 0, index, torch.ones(8, dtype=torch.int64)), 4),
        uniform(keys(0, 0, index), 4, stream=1),
    ]
    assert all(not torch.isclose(base, other).any() for other in others)


def test_draws_are_uniform_and_unrelated_from_image_to_image() -> None:
    draws = uniform(keys(3, 5, torch.arange(20_000)), 4)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert torch.allclose(draws.mean(dim=0), torch.full((4,), 0.5), atol=0.01)
    assert torch.allclose(torch.histc(draws, 10) / draws.numel(), torch.full((10,), 0.1), atol=0.005)
    neighbours = torch.corrcoef(torch.stack((draws[:-1, 0], draws[1:, 0], draws[:-1, 1])))
    assert (neighbours - torch.eye(3)).abs().max() < 0.03


def test_streams_drawn_together_give_the_numbers_of_each_alone() -> None:
    key = keys(7, 1, torch.arange(30))
    together = uniforms(key, ((4, 0), (1, 10), (5, 3)))
    assert all(torch.equal(a, uniform(key, *b)) for a, b in zip(together, ((4, 0), (1, 10), (5, 3)), strict=True))


def test_drawing_leaves_the_keys_as_they_were() -> None:
    key = keys(7, 1, torch.arange(30))
    before = key.clone()
    normal(key, 5)
    assert torch.equal(key, before)


def test_normal_draws_have_mean_zero_and_deviation_one() -> None:
    draws = normal(keys(0, 0, torch.arange(5000)), 4)
    assert abs(float(draws.mean())) < 0.02
    assert abs(float(draws.std()) - 1) < 0.02
    assert (torch.corrcoef(draws.T) - torch.eye(4)).abs().max() < 0.05  # pairs share a radius and yet are unrelated


def test_numbers_mix_every_part() -> None:
    assert len({number(a, b) for a in range(20) for b in range(20)}) == 400


def test_plain_and_tensor_mixing_agree() -> None:
    assert [number(0, a) for a in (1, 2**40, 2**62)] == [_slow(0, a) for a in (1, 2**40, 2**62)]


def _slow(*parts: int) -> int:
    from glocal.data import chance

    key = torch.zeros(1, dtype=torch.int64)
    for part in parts:
        key = chance._mix(key * chance._FIRST + part + chance._STEP)
    return int(chance._right(key, 33))
