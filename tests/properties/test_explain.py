"""What holds for all attention: flows keep their mass, entropy its bounds, windows their tokens."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal.explain.between import pooling
from glocal.explain.dense_rollout import class_map, global_map
from glocal.explain.distance import relative_distance
from glocal.explain.entropy import entropy
from glocal.explain.rollout import FUSIONS, rollout
from glocal.explain.windows import Windows
from glocal.lattice import Lattice

sides = st.integers(1, 6)
lattices = st.builds(Lattice, sides, sides, st.integers(0, 3))


def attention(lattice: Lattice, seed: int, heads: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(2, heads, len(lattice), len(lattice), generator=generator)).softmax(dim=-1)


@settings(deadline=None, max_examples=50)
@given(st.lists(lattices, min_size=1, max_size=4), st.sampled_from(FUSIONS), st.floats(0, 0.9), st.integers(0, 99))
def test_rows_of_any_roll_out_sum_to_one(found: list[Lattice], fusion: str, discard: float, seed: int) -> None:
    prefix = found[0].prefix  # hosts keep their prefix tokens through merges
    found = [Lattice(each.height, each.width, prefix) for each in found]
    flow = rollout([attention(each, seed) for each in found], found, fusion=fusion, discard=discard)  # type: ignore[arg-type]
    assert flow.shape == (2, len(found[-1]), len(found[0]))
    assert flow.min() >= 0
    torch.testing.assert_close(flow.sum(dim=-1), torch.ones(flow.shape[:2]))


@given(lattices, lattices)
def test_pooling_keeps_mass_whatever_the_sizes(fine: Lattice, coarse: Lattice) -> None:
    rows = pooling(fine, coarse).sum(dim=1)
    known = torch.arange(len(coarse)) < fine.prefix
    expected = torch.where(torch.arange(len(coarse)) < coarse.prefix, known.float(), 1.0)
    torch.testing.assert_close(rows, expected)


@given(lattices, st.integers(0, 99))
def test_entropy_lies_between_zero_and_that_of_uniform_attention(lattice: Lattice, seed: int) -> None:
    found = entropy(attention(lattice, seed))
    assert found.min() >= 0
    assert found.max() <= math.log(len(lattice)) + 1e-5


@given(st.builds(Lattice, st.integers(2, 5), st.integers(2, 5), st.integers(0, 2)), st.integers(0, 99))
def test_no_look_is_farther_than_the_corners(lattice: Lattice, seed: int) -> None:
    far = relative_distance(attention(lattice, seed), lattice, average="tokens")
    corner = 2 - 1 / lattice.height - 1 / lattice.width
    assert (far >= 0).all()
    assert (far <= corner + 1e-5).all()


@given(st.builds(Lattice, sides, sides, st.integers(0, 2)), st.integers(0, 99))
def test_classes_that_share_all_patches_cancel_around_the_global_map(lattice: Lattice, seed: int) -> None:
    flow = attention(lattice, seed).mean(dim=1)
    count = lattice.height * lattice.width
    share = (torch.arange(count) < count // 2).float().expand(2, -1)
    if 0 < count // 2 < count:
        one = class_map(flow, share, lattice, signed=True)
        two = class_map(flow, 1 - share, lattice, signed=True)
        first, second = count // 2, count - count // 2
        torch.testing.assert_close(first * one + second * two, torch.zeros_like(one), atol=1e-5, rtol=0)
    assert global_map(flow, lattice).shape == (2, lattice.height, lattice.width)


@given(sides, sides, st.integers(1, 4), st.integers(1, 4), st.integers(0, 3), st.integers(0, 3))
def test_windows_hold_every_token_once(
    height: int, width: int, rows: int, columns: int, down: int, across: int
) -> None:
    windows = Windows(Lattice(height, width), (rows, columns), (down % rows, across % columns))
    tokens = windows.tokens().flatten()
    assert tokens[tokens < height * width].sort().values.tolist() == list(range(height * width))
    kept = torch.arange(2.0 * tokens.numel()).view(2 * windows.count, 1, rows * columns)
    assert windows.in_order(kept).shape == (2, 1, height * width)
