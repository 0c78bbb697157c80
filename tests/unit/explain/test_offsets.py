"""Sampling points of deformable merges against cases worked out by hand."""

from __future__ import annotations

import pytest
import timm
import torch

from glocal import DTM, GlocalError, enhance
from glocal.explain.offsets import Merge, merges_of, sampling_points, trace


def test_without_offsets_a_token_is_made_of_its_own_square() -> None:
    merges = [Merge(torch.zeros(1, 8, side, side), (2 * side, 2 * side)) for side in (4, 2, 1)]
    points = trace(merges, torch.tensor([[0.0, 0.0]]))
    assert points.shape == (1, 64, 2)
    expected = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    assert {tuple(p) for p in points[0].tolist()} == {tuple(p) for p in expected.tolist()}


def test_one_tap_moves_by_its_offset() -> None:
    offset = torch.zeros(1, 8, 2, 2)
    offset[0, 2:4, 1, 0] = torch.tensor([0.5, -1.0])  # second tap of token (1, 0): down by a half, left by one
    points = trace([Merge(offset, (4, 4))], torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(points[0], torch.tensor([[2.0, 0.0], [2.5, 0.0], [3.0, 0.0], [3.0, 1.0]]))


def test_between_tokens_the_offset_is_interpolated() -> None:
    offset = torch.zeros(1, 8, 1, 2)
    offset[0, 1::2, 0, 1] = 1.0  # the right token's taps all move right by one
    points = trace([Merge(offset, (2, 4))], torch.tensor([[0.0, 0.5]]))
    torch.testing.assert_close(points[0, 0], torch.tensor([0.0, 1.5]))


def test_stride_and_padding_are_followed() -> None:
    points = trace([Merge(torch.zeros(1, 18, 2, 2), (4, 4), kernel=3, stride=2, padding=1)], torch.tensor([[0.0, 1.0]]))
    assert points[0, 0].tolist() == [-1.0, 1.0]
    assert points[0, -1].tolist() == [1.0, 3.0]


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    host = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=64,
        window_size=2,
        depths=(1, 1, 1, 1),
        embed_dim=12,
        num_heads=(1, 1, 1, 1),
    )
    return enhance(host, DTM()).eval()


def test_a_fresh_model_samples_its_own_32_pixels(model: torch.nn.Module) -> None:
    points = sampling_points(model, torch.randn(2, 3, 64, 64), (1, 0))
    assert points.shape == (2, 64, 2)
    assert points[..., 0].min() == 33.5  # the centre of the 4x4 patch that begins at row 32
    assert points[..., 0].max() == 61.5
    assert points[..., 1].min() == 1.5
    assert points[..., 1].max() == 29.5


def test_offsets_that_have_learned_move_the_points(model: torch.nn.Module) -> None:
    biases = [each.bias for name, each in model.named_modules() if name.endswith("conv.offset")]
    assert len(biases) == 3
    with torch.no_grad():
        for bias in biases:
            bias[0::2] = 0.5  # every tap of every merge down by half a token: 0.5 * (4 + 8 + 16) pixels
    points = sampling_points(model, torch.randn(1, 3, 64, 64), (0, 0))
    assert points[..., 0].min().item() == pytest.approx(1.5 + 14)
    assert points[..., 1].min().item() == 1.5
    assert not any(module._forward_hooks for name, module in model.named_modules() if name.endswith("conv.offset"))


def test_a_token_off_the_map_is_refused(model: torch.nn.Module) -> None:
    with pytest.raises(GlocalError, match="2x2 tokens"):
        sampling_points(model, torch.randn(1, 3, 64, 64), (2, 0))


def test_a_model_without_deformable_merging_is_refused() -> None:
    with pytest.raises(GlocalError, match="no deformable token merging"):
        merges_of(torch.nn.Linear(1, 1), torch.zeros(1, 1))
