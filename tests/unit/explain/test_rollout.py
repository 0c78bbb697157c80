"""Roll-out against cases worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glocal.errors import GlocalError
from glocal.explain.between import cover, pooling, spread
from glocal.explain.rollout import RollOut, gradient_rollout, looked_at, rollout
from glocal.lattice import Lattice

FIRST = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])  # (1, 1, 2, 2)
SECOND = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])


def test_two_layers_by_hand() -> None:
    # Steps (A + I) / 2: [[1, 0], [.25, .75]] and [[.5, .5], [.5, .5]]; their product is [[.625, .375], [.625, .375]].
    expected = torch.tensor([[[0.625, 0.375], [0.625, 0.375]]])
    torch.testing.assert_close(rollout([FIRST, SECOND]), expected)


def test_the_later_layer_multiplies_from_the_left() -> None:
    assert not torch.allclose(rollout([FIRST, SECOND]), rollout([SECOND, FIRST]))


@pytest.mark.parametrize("fusion, row", [("mean", [0.75, 0.25]), ("max", [2 / 3, 1 / 3]), ("min", [1.0, 0.0])])
def test_heads_are_fused_by_hand(fusion: str, row: list[float]) -> None:
    # Row 0 of the two heads: [1, 0] and [0, 1]. Mean (.5, .5), max (1, 1), min (0, 0); then plus I, rows to one.
    heads = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])
    torch.testing.assert_close(rollout([heads], fusion=fusion)[0, 0], torch.tensor(row))  # type: ignore[arg-type]


def test_discard_drops_the_smallest_weights_but_never_those_to_prefix_tokens() -> None:
    lattice = Lattice(1, 2, prefix=1)
    attention = torch.tensor([[[[0.1, 0.2, 0.7], [0.1, 0.6, 0.3], [0.0, 0.5, 0.5]]]])
    # Of the six weights to patches, a third goes: .2 and .3. Row 0 is then (.1, 0, .7) plus the identity.
    rolled = rollout([attention], [lattice], discard=1 / 3)
    torch.testing.assert_close(rolled[0, 0], torch.tensor([1.1, 0.0, 0.7]) / 1.8)
    torch.testing.assert_close(rolled[0, 1], torch.tensor([0.1, 1.6, 0.0]) / 1.7)


def test_discarding_nothing_is_plain_rollout() -> None:
    torch.testing.assert_close(rollout([FIRST, SECOND], discard=0.0), rollout([FIRST, SECOND]))


def test_streaming_equals_the_whole() -> None:
    maps = _random(4, 3, 10)
    roll = RollOut()
    for each in maps:
        roll.add(each)
    torch.testing.assert_close(roll.flow, rollout(maps))


def test_the_class_token_looks_where_there_is_one_and_the_mean_token_where_there_is_none() -> None:
    flow = torch.arange(25.0).view(1, 5, 5)
    lattice = Lattice(2, 2, prefix=1)
    torch.testing.assert_close(looked_at(flow, lattice), torch.tensor([[[1.0, 2], [3, 4]]]))
    torch.testing.assert_close(looked_at(flow, lattice, token=4), torch.tensor([[[21.0, 22], [23, 24]]]))
    bare = Lattice(1, 5)
    torch.testing.assert_close(looked_at(flow, bare), torch.tensor([[[10.0, 11, 12, 13, 14]]]))
    torch.testing.assert_close(looked_at(flow, lattice, token="mean"), torch.tensor([[[13.5, 14.5], [15.5, 16.5]]]))


def test_gradient_rollout_by_hand() -> None:
    # One layer: I + (G * A)+. Second: R + step @ R.
    attention = [FIRST, SECOND]
    gradients = [torch.tensor([[[[2.0, 1.0], [-4.0, 2.0]]]]), torch.tensor([[[[1.0, 3.0], [1.0, -1.0]]]])]
    first = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    expected = first + torch.tensor([[0.0, 3.0], [1.0, 0.0]]) @ first
    torch.testing.assert_close(gradient_rollout(attention, gradients)[0], expected)


def test_gradient_rollout_can_leave_itself_out_even_across_a_merge() -> None:
    fine, coarse = Lattice(2, 2), Lattice(1, 1)
    maps = [torch.eye(4)[None, None], torch.ones(1, 1, 1, 1)]
    nothing = [torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 1, 1)]
    assert gradient_rollout(maps, nothing, [fine, coarse], itself=False).abs().max() == 0
    torch.testing.assert_close(gradient_rollout(maps, nothing, [fine, coarse]), torch.full((1, 1, 4), 0.25))


def test_gradient_rollout_cuts_before_it_averages_heads() -> None:
    attention = torch.ones(1, 2, 1, 1)
    gradients = torch.tensor([1.0, -1.0]).view(1, 2, 1, 1)
    assert gradient_rollout([attention], [gradients]).item() == pytest.approx(1.5)


def test_a_merge_between_layers_averages_what_it_covers() -> None:
    fine, coarse = Lattice(2, 2), Lattice(1, 1)
    still, one = torch.eye(4)[None, None], torch.ones(1, 1, 1, 1)
    torch.testing.assert_close(rollout([still, one], [fine, coarse]), torch.full((1, 1, 4), 0.25))


def test_a_class_token_that_joins_late_takes_what_it_looks_at() -> None:
    early, late = Lattice(1, 2), Lattice(1, 2, prefix=1)
    third = torch.tensor([[[[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]])
    rolled = rollout([torch.eye(2)[None, None], third], [early, late])
    torch.testing.assert_close(rolled[0, 0], torch.tensor([1.0, 0.0]))  # its own half stood for nothing
    torch.testing.assert_close(rolled.sum(-1), torch.ones(1, 3))


def test_merges_without_lattices_are_refused() -> None:
    with pytest.raises(GlocalError, match="Give their lattices"):
        rollout([torch.eye(4)[None, None], torch.ones(1, 1, 1, 1)])


@pytest.mark.parametrize("options", [{"fusion": "meen"}, {"discard": 1.0}, {"discard": -0.1}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(GlocalError):
        rollout([FIRST], **options)  # type: ignore[arg-type]


def test_no_layers_at_all_are_refused() -> None:
    with pytest.raises(GlocalError, match="at least one layer"):
        rollout([])


def test_pooling_rows_sum_to_one_and_prefix_tokens_stay() -> None:
    matrix = pooling(Lattice(5, 7, prefix=2), Lattice(3, 4, prefix=2))
    torch.testing.assert_close(matrix.sum(dim=1), torch.ones(14))
    assert matrix[0, 0] == matrix[1, 1] == 1


def test_reduced_keys_are_spread_over_what_they_stand_for() -> None:
    queries, keys = Lattice(2, 2), Lattice(1, 1)
    torch.testing.assert_close(spread(torch.ones(1, 1, 4, 1), queries, keys), torch.full((1, 1, 4, 4), 0.25))


def test_cover_is_the_share_of_each_patch() -> None:
    mask = torch.zeros(1, 4, 4)
    mask[0, :2, :1] = 1
    torch.testing.assert_close(cover(mask, Lattice(2, 2)), torch.tensor([[0.5, 0.0, 0.0, 0.0]]))


def _random(layers: int, heads: int, tokens: int) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, tokens).softmax(dim=-1) for _ in range(layers)]
