"""Dense Attention Roll-Out against cases worked out by hand."""

from __future__ import annotations

import pytest
import torch

from glocal.errors import GlocalError
from glocal.explain.dense_rollout import class_map, from_boxes, from_segmentation, global_map, relevant
from glocal.lattice import Lattice

LATTICE = Lattice(2, 2)
# Tokens 0 and 1 look left, tokens 2 and 3 look right.
FLOW = torch.tensor([[[0.5, 0.0, 0.5, 0.0], [0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5], [0.0, 0.5, 0.0, 0.5]]])


def test_the_global_map_is_the_average_of_all_tokens() -> None:
    torch.testing.assert_close(global_map(FLOW, LATTICE), torch.full((1, 2, 2), 0.25))


def test_a_class_keeps_what_its_tokens_have_above_the_average() -> None:
    top = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    torch.testing.assert_close(class_map(FLOW, top, LATTICE), torch.tensor([[[0.25, 0.0], [0.25, 0.0]]]))
    signed = class_map(FLOW, top, LATTICE, signed=True)
    torch.testing.assert_close(signed, torch.tensor([[[0.25, -0.25], [0.25, -0.25]]]))


def test_a_class_that_every_token_has_leaves_nothing() -> None:
    torch.testing.assert_close(class_map(FLOW, torch.ones(1, 4), LATTICE), torch.zeros(1, 2, 2))


def test_a_label_map_gives_each_class_its_own_map_and_leaves_the_ignored_out() -> None:
    labels = torch.full((8, 8), 3)
    labels[4:] = 7
    labels[0, 0] = 255
    maps = from_segmentation(FLOW, labels, LATTICE)
    assert sorted(maps) == [3, 7]
    torch.testing.assert_close(maps[3], torch.tensor([[[0.25, 0.0], [0.25, 0.0]]]))
    torch.testing.assert_close(maps[7], torch.tensor([[[0.0, 0.25], [0.0, 0.25]]]))


def test_boxes_choose_the_tokens_they_cover_by_half() -> None:
    maps = from_boxes(FLOW, {"cat": [(0, 0, 8, 3)]}, (8, 8), LATTICE)  # three quarters of the upper tokens
    torch.testing.assert_close(maps["cat"], torch.tensor([[[0.25, 0.0], [0.25, 0.0]]]))


def test_a_box_smaller_than_a_token_still_has_one() -> None:
    share = torch.tensor([[0.0, 0.1, 0.02, 0.0]])
    assert relevant(share).tolist() == [[False, True, False, False]]


def test_prefix_tokens_neither_choose_nor_show() -> None:
    lattice = Lattice(2, 2, prefix=1)
    flow = torch.zeros(1, 5, 5)
    flow[:, 1:, 1:] = FLOW
    flow[:, 0] = 9.0
    torch.testing.assert_close(global_map(flow, lattice), torch.full((1, 2, 2), 0.25))


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(GlocalError, match="ignored label"):
        from_segmentation(FLOW, torch.full((8, 8), 255), LATTICE)
    with pytest.raises(GlocalError, match="outside"):
        from_boxes(FLOW, {"cat": [(20, 20, 30, 30)]}, (8, 8), LATTICE)
