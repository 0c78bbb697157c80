from __future__ import annotations

import pytest
import torch

from glocal import Lattice, LatticeError


def test_patches_sit_in_row_major_order_behind_the_prefix() -> None:
    lattice = Lattice(2, 3, prefix=1)
    aux, patch_map = lattice.split(torch.arange(7.0).view(1, 7, 1))
    assert aux.flatten().tolist() == [0]
    assert patch_map[0, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_split_copies_nothing() -> None:
    tokens = torch.randn(2, 7, 4)
    aux, patch_map = Lattice(2, 3, 1).split(tokens)
    assert aux.data_ptr() == tokens.data_ptr()
    assert patch_map.untyped_storage().data_ptr() == tokens.untyped_storage().data_ptr()


def test_tokens_that_do_not_fill_the_lattice_are_named() -> None:
    with pytest.raises(LatticeError, match="5 tokens do not fill a 2x3 lattice with 1 prefix tokens"):
        Lattice(2, 3, 1).split(torch.randn(1, 5, 4))
