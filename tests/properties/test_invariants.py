"""What holds for all inputs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import SqueezeExcite
from torch.nn import functional as F
from torchvision.ops import deform_conv2d as torchvision_deform

from glocal import Lattice, named, spelled
from glocal.kernels.deform import deform_conv2d, deform_conv2d_reference, sample_taps
from glocal.mechanisms import DTM, LIFE, ContextBroadcast, EarlyMLP, LocalFFN, SqueezeContext, UniformHead
from glocal.mechanisms.context import Broadcast
from glocal.mechanisms.life import LocalQKV, MultiScaleQKV
from glocal.mechanisms.local_ffn import LocalFeedForward, ResidualConv
from glocal.mechanisms.token_merge import DeformableConv, DeformableMerge
from glocal.site import pick

sides = st.integers(1, 9)
lattices = st.builds(Lattice, sides, sides, st.integers(0, 5))
settings.register_profile("steady", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("steady")


@given(lattices)
def test_join_undoes_split_on_any_lattice(lattice: Lattice) -> None:
    tokens = torch.randn(2, len(lattice), 5)
    assert torch.equal(lattice.join(*lattice.split(tokens)), tokens)


@given(st.integers(1, 30), st.integers(1, 6))
def test_broadcasting_keeps_the_mean_and_halves_what_differs_from_it(tokens: int, dim: int) -> None:
    x = torch.randn(3, tokens, dim, dtype=torch.float64)
    mean, out = x.mean(1, keepdim=True), Broadcast()(x)
    assert torch.allclose(out.mean(1, keepdim=True), mean)
    assert torch.allclose(out - mean, (x - mean) / 2)


@given(st.integers(2, 12), st.integers(2, 12), st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 1, 1)]))
def test_a_deformable_convolution_that_has_not_moved_is_its_plain_convolution(
    height: int, width: int, shape: tuple[int, int, int]
) -> None:
    kernel, stride, padding = shape
    if min(height, width) + 2 * padding < kernel:
        return
    layer = DeformableConv(4, 6, kernel, stride, padding)
    x = torch.randn(2, 4, height, width)
    assert torch.allclose(layer(x), F.conv2d(x, layer.weight, layer.bias, stride, padding), atol=1e-5)


@pytest.mark.parametrize("side, size", [(8, 4), (31, 17), (64, 64)])
@pytest.mark.parametrize("groups", [1, 4])
def test_the_plain_path_agrees_with_torchvision(side: int, size: int, groups: int) -> None:
    x = torch.randn(2, 4, side, size)
    weight, bias = torch.randn(8, 4 // groups, 3, 3), torch.randn(8)
    height, width = (side + 1) // 2, (size + 1) // 2
    offset = 3 * torch.randn(2, 18, height, width)
    theirs = torchvision_deform(x, offset, weight, bias, stride=2, padding=1)
    ours = deform_conv2d_reference(x, offset, weight, bias, 2, 1)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert torch.equal(deform_conv2d(x, offset, weight, bias, 2, 1), theirs)


def test_the_plain_paths_gradients_agree_with_torchvisions() -> None:
    x, weight = torch.randn(1, 3, 9, 7, dtype=torch.float64), torch.randn(4, 3, 2, 2, dtype=torch.float64)
    offset = torch.randn(1, 8, 4, 3, dtype=torch.float64)
    gradients = []
    for operator in (deform_conv2d_reference, lambda *a: torchvision_deform(*a[:4], stride=a[4], padding=a[5])):
        leaves = [t.clone().requires_grad_() for t in (x, offset, weight)]
        operator(*leaves, None, 2, 0).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_a_tap_that_did_not_move_is_read_exactly() -> None:
    x = torch.randn(2, 3, 200, 200)
    taps = sample_taps(x, torch.zeros(2, 8, 100, 100), kernel=2, stride=2, padding=0)
    assert torch.equal(taps[:, :, 1], x[:, :, ::2, 1::2])
    assert torch.equal(taps[:, :, 2], x[:, :, 1::2, ::2])


@given(lattices, st.sampled_from([(1, 3, 5), (3,), (1, 3), (3, 5, 7)]))
def test_life_sees_no_further_than_its_kernels_reach(lattice: Lattice, kernels: tuple[int, ...]) -> None:
    """Moving one patch token changes the scales' values only within the sum of the kernels' radii."""
    module = MultiScaleQKV(6, (2,) * len(kernels), kernels).double()
    tokens = torch.randn(1, len(lattice), 6, dtype=torch.float64)
    moved = tokens.clone()
    moved[0, lattice.prefix] += 1  # the top left patch
    changed = (module(moved, lattice) - module(tokens, lattice)).abs().sum(-1)
    aux, patch_map = lattice.split(changed[..., None])
    reach = sum(kernel // 2 for kernel in kernels)
    assert not aux.any()
    assert not patch_map[:, :, reach + 1 :].any()
    assert not patch_map[:, :, :, reach + 1 :].any()
    assert patch_map[0, 0, 0, 0] > 0


@given(lattices)
def test_local_feed_forward_leaves_prefix_tokens_alone(lattice: Lattice) -> None:
    module = LocalFeedForward(4, 8).eval()
    aux, _ = lattice.split(module(torch.randn(2, len(lattice), 4), lattice))
    assert not aux.any()


@given(lattices)
def test_preserving_modules_start_as_the_identity(lattice: Lattice) -> None:
    tokens = torch.randn(2, len(lattice), 6)
    qkv = torch.nn.Linear(6, 18)
    assert torch.allclose(LocalQKV(qkv, (3, 2, 1), (1, 3, 5))(tokens, lattice), qkv(tokens), atol=1e-6)
    assert torch.equal(ResidualConv(6)(tokens, lattice), tokens)


@given(st.integers(1, 9), st.integers(1, 9))
def test_folding_changes_nothing(height: int, width: int) -> None:
    lattice = Lattice(height, width, 1)
    ffn, merge = LocalFeedForward(4, 8).double(), DeformableMerge(4, 6).double()
    for module in (ffn, merge):
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.1, 2)
        module.eval()
    tokens = torch.randn(2, len(lattice), 4, dtype=torch.float64)
    patch_map = torch.randn(2, 4, height, width, dtype=torch.float64)
    before = ffn(tokens, lattice), merge(patch_map)
    ffn.fold()
    merge.fold()
    assert torch.allclose(ffn(tokens, lattice), before[0])
    assert torch.allclose(merge(patch_map), before[1])


@given(st.integers(1, 48))
def test_halves_and_thirds_part_every_depth(depth: int) -> None:
    assert pick("lower", depth + 1) | pick("upper", depth + 1) == pick("all", depth + 1)
    assert not pick("lower", depth + 1) & pick("upper", depth + 1)
    thirds = [pick(part, depth + 2) for part in ("low", "mid", "high")]
    assert frozenset().union(*thirds) == pick("all", depth + 2)
    assert sum(map(len, thirds)) == depth + 2


mechanisms = st.one_of(
    st.builds(LIFE, kernels=st.lists(st.sampled_from([1, 3, 5, 7]), min_size=1, max_size=4).map(tuple)),
    st.builds(LocalFFN, gate=st.sampled_from(["se", "eca", "none"]), expansion=st.sampled_from([None, 2, 6, 1.5])),
    st.builds(ContextBroadcast, scaled=st.booleans(), layers=st.sampled_from([None, "all", "2-5,8", (0, 1)])),
    st.builds(DTM, stages=st.sampled_from([None, (1,), (1, 2)])),
    st.builds(EarlyMLP, stages=st.sampled_from([(0,), (0, 1)]), layers=st.sampled_from([None, "low"])),
    st.builds(UniformHead, variant=st.sampled_from(["a", "b", "c"])),
    st.builds(SqueezeContext, reduction=st.integers(1, 16)),
)


@given(st.lists(mechanisms, min_size=1, max_size=4))
def test_what_is_spelled_reads_back_the_same(chosen: list) -> None:
    read = named(spelled(*chosen))
    assert spelled(*read) == spelled(*chosen)
    assert [type(each) for each in read] == [type(each) for each in chosen]


def test_the_gate_leaves_what_a_hook_kept_and_gives_what_timms_gives() -> None:
    gate = SqueezeExcite(12, rd_channels=4, gate_layer=torch.nn.Hardsigmoid)
    module = LocalFeedForward(6, 12, gate=gate).eval()
    assert module.act2 is not None
    kept: list[torch.Tensor] = []
    module.act2.register_forward_hook(lambda _, args, output: kept.append(output))
    tokens = torch.randn(2, 1 + 6, 6)
    with torch.no_grad():
        quick = module(tokens, Lattice(2, 3, 1))  # SE as two matrix products
    plain = module(tokens, Lattice(2, 3, 1))  # as timm does it
    torch.testing.assert_close(quick, plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(kept[0], kept[1])
