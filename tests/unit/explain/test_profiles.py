"""Entropy, distance and scales against cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import timm
import torch

from glocal import ContextBroadcast, GlocalError, enhance
from glocal.explain.distance import distances, relative_distance
from glocal.explain.entropy import by_head, entropy, entropy_profile
from glocal.explain.scales import scale_profile, scale_statistics
from glocal.lattice import Lattice


def test_uniform_attention_has_the_greatest_entropy_and_a_single_look_none() -> None:
    uniform, single = torch.full((1, 1, 1, 197), 1 / 197), torch.eye(197)[None, None, :1]
    assert entropy(uniform).item() == pytest.approx(math.log(197), rel=1e-6)  # the paper's 5.3
    assert entropy(single).item() == 0


def test_entropy_of_a_half_and_two_quarters() -> None:
    assert entropy(torch.tensor([0.5, 0.25, 0.25])).item() == pytest.approx(1.5 * math.log(2))


def test_a_profile_by_hand() -> None:
    values = torch.arange(21.0).view(1, 1, 21)  # mean 10; 15 % of 20 is 3, 85 % is 17
    profile = entropy_profile([values, values + 1], [21, 21])
    assert profile.mean.tolist() == [10, 11]
    assert profile.low.tolist() == pytest.approx([3, 4])
    assert profile.high.tolist() == pytest.approx([17, 18])
    assert profile.class_token.tolist() == [0, 1]
    assert profile.maximum.tolist() == pytest.approx([math.log(21)] * 2)


def test_percentiles_lie_between_values() -> None:
    profile = entropy_profile([torch.tensor([[[0.0, 1.0]]])], [2])
    assert profile.low.item() == pytest.approx(0.15)


def test_without_a_class_token_its_entropy_is_unknown() -> None:
    assert entropy_profile([torch.ones(1, 1, 2)], [2], class_token=False).class_token.isnan().all()


def test_entropy_by_head_keeps_heads_apart() -> None:
    values = torch.tensor([[[0.0, 2.0], [4.0, 6.0]]])
    assert [each.tolist() for each in by_head([values])] == [[1.0, 5.0]]


def test_distances_are_l1_between_patch_centres() -> None:
    torch.testing.assert_close(distances(Lattice(1, 2)), torch.tensor([[0.0, 0.5], [0.5, 0.0]]))
    assert distances(Lattice(2, 2))[0, 3].item() == pytest.approx(1.0)


def test_relative_distance_by_hand() -> None:
    # Two patches side by side, each gives 0.8 to the other: 0.8 * 0.5 averaged over the two pairs.
    attention = torch.tensor([[[[0.2, 0.8], [0.8, 0.2]]]])
    assert relative_distance(attention, Lattice(1, 2)).item() == pytest.approx(0.4)
    # Uniform on four patches of 1x4: the distances of the 12 pairs sum to 5, each weighed by 1/4.
    uniform = torch.full((1, 1, 4, 4), 0.25)
    assert relative_distance(uniform, Lattice(1, 4)).item() == pytest.approx(5 * 0.25 / 12)
    assert relative_distance(uniform, Lattice(1, 4), average="tokens").item() == pytest.approx(5 * 0.25 / 4)


def test_prefix_tokens_do_not_count_as_far() -> None:
    attention = torch.full((1, 1, 3, 3), 9.0)
    attention[..., 1:, 1:] = torch.tensor([[0.2, 0.8], [0.8, 0.2]])
    assert relative_distance(attention, Lattice(1, 2, prefix=1)).item() == pytest.approx(0.4)


def test_reduced_keys_sit_at_the_centre_of_what_they_stand_for() -> None:
    far = relative_distance(torch.ones(1, 1, 2, 1), Lattice(1, 2), Lattice(1, 1))
    assert far.item() == pytest.approx(0.25)


def test_scale_statistics_by_hand() -> None:
    weights = torch.arange(-10.0, 1.0)  # |w| is 0..10: quantiles 1 and 9
    mean, magnitude, ratio = scale_statistics([weights, torch.zeros(4)])
    assert mean.tolist() == [-5, 0]
    assert magnitude.tolist() == [5, 0]
    assert ratio.tolist() == pytest.approx([1 / 9, 0])


def test_scales_are_read_layer_by_layer_from_a_model() -> None:
    model = enhance(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=3), ContextBroadcast(scaled=True))
    with torch.no_grad():
        for i, (name, each) in enumerate((n, p) for n, p in model.named_parameters() if n.endswith("new.scale")):
            assert f"blocks.{i}." in name
            each.fill_(i)
    profile = scale_profile(model)
    assert profile.mean.tolist() == [0, 1, 2]
    assert profile.ratio.tolist() == [0, 1, 1]


def test_a_model_without_cb_s_is_refused() -> None:
    with pytest.raises(GlocalError, match="no CB_S"):
        scale_profile(torch.nn.Linear(1, 1))
