"""The order of an epoch is the same for any number of processes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal.data.order import Order
from glocal.errors import GlocalError


@settings(deadline=None, max_examples=30)
@given(world=st.sampled_from((1, 2, 4)), accumulate=st.sampled_from((1, 2)), repeats=st.integers(1, 3))
def test_shares_of_all_processes_make_up_the_same_global_batch(world: int, accumulate: int, repeats: int) -> None:
    alone = Order(100, 16, seed=7, repeats=repeats)
    epoch = alone.epoch(3)
    for step in range(alone.steps):
        shares = [
            part
            for rank in range(world)
            for i in range(accumulate)
            for part in [Order(100, 16, 7, repeats, accumulate, rank, world).part(epoch, step, i)[0]]
        ]
        assert sorted(torch.cat(shares).tolist()) == sorted(alone.part(epoch, step)[0].tolist())


def test_each_image_appears_once_in_an_epoch_and_epochs_differ() -> None:
    order = Order(64, 16)
    first, second = order.epoch(0)[0], order.epoch(1)[0]
    assert sorted(first.tolist()) == list(range(64))
    assert not torch.equal(first, second)
    assert torch.equal(first, order.epoch(0)[0])


def test_repeated_copies_are_numbered_and_land_on_different_processes() -> None:
    index, copy = Order(90, 30, repeats=3).epoch(0)
    assert index[:3].unique().numel() == 1
    assert copy[:3].tolist() == [0, 1, 2]
    left = Order(90, 30, repeats=3, rank=0, world=3).part((index, copy), 0)[0]
    right = Order(90, 30, repeats=3, rank=1, world=3).part((index, copy), 0)[0]
    assert torch.equal(left, right)


def test_a_batch_that_cannot_be_shared_or_filled_is_refused() -> None:
    with pytest.raises(GlocalError, match="cannot be shared by 3 processes"):
        Order(100, 16, world=3)
    with pytest.raises(GlocalError, match="10 training images do not fill one batch of 16"):
        Order(10, 16)
