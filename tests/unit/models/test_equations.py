"""The architectures' own equations, written out once in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from glocal.lattice import Lattice
from glocal.models.lit import GatherMerge
from glocal.models.positions import RelativeAttention, _learning, resize_bias, resize_positions, sinusoid
from glocal.models.stage import Block, ConvMerge
from glocal.models.tokens_to_token import PerformerAttention, TokenAttention, TokenStep, TokensToToken, soft_split
from tests.unit.models.tiny import EXTRA, build


def lively(module: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_soft_split_gathers_overlapping_patches_channel_by_channel() -> None:
    x = draw(1, 2, 5, 7)
    tokens, lattice = soft_split(x, (3, 2, 1))
    padded = nn.functional.pad(x, (1, 1, 1, 1))
    assert lattice == Lattice(3, 4)
    for i in range(3):
        for j in range(4):
            patch = padded[0, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            assert torch.equal(tokens[0, i * 4 + j], patch.flatten())


def test_performer_attention_is_a_ratio_of_feature_products_plus_the_values() -> None:
    attention = lively(PerformerAttention(10, 6, drop=0.1))
    attention.float()  # it computes in float32 whatever comes in
    x = draw(1, 4, 10).float()
    k, q, v = (x[0].double() @ attention.kqv.weight.double().T + attention.kqv.bias.double()).split(6, dim=-1)
    w, m = attention.w.double(), 3

    def feature(row: Tensor) -> Tensor:
        return torch.stack([torch.exp(w[i] @ row - row @ row / 2) / math.sqrt(m) for i in range(m)])

    rows = []
    for i in range(4):
        scores = torch.stack([feature(q[i]) @ feature(k[j]) for j in range(4)])
        mixed = (scores[:, None] * v).sum(0) / (scores.sum() + 1e-8)
        rows.append(v[i] + attention.proj.weight.double() @ mixed + attention.proj.bias.double())
    assert torch.allclose(attention(x)[0].double(), torch.stack(rows), rtol=1e-4, atol=1e-5)
    assert not attention.w.requires_grad


def test_random_features_start_as_orthogonal_rows() -> None:
    w = PerformerAttention(20, 16, drop=0.0).w
    assert torch.allclose(w @ w.T, 8 * torch.eye(8), atol=1e-4)


def test_token_attention_scales_by_the_width_that_comes_in_and_adds_its_values() -> None:
    attention = lively(TokenAttention(10, 6))
    x = draw(1, 4, 10)
    q, k, v = (x[0] @ attention.qkv.weight.T).split(6, dim=-1)
    mixed = ((q @ k.T) / math.sqrt(10)).softmax(-1) @ v
    assert close(attention(x)[0], v + mixed @ attention.proj.weight.T + attention.proj.bias)


def test_a_token_step_adds_its_network_and_leaves_the_idle_norm_alone() -> None:
    step = lively(TokenStep(10, 6, performer=False, idle_norm=True))
    x = draw(1, 4, 10)
    tokens = step.attn(layer_norm(step.norm1, x))
    hidden = nn.functional.gelu(step.mlp.fc1(layer_norm(step.norm2, tokens)))
    assert close(step(x, Lattice(2, 2)), tokens + step.mlp.fc2(hidden))
    assert sum(p.numel() for p in step.idle_norm.parameters()) == 12


def test_the_tokeniser_tells_the_map_it_makes() -> None:
    large, small = (
        TokensToToken(8, token_dim=4),
        TokensToToken(8, token_dim=4, splits=((3, 2, 1), (3, 2, 1), (1, 1, 0))),
    )
    for tokeniser, size, grid in ((large, (224, 160), (14, 10)), (large, (97, 65), (6, 4)), (small, (32, 48), (8, 12))):
        tokens, lattice = tokeniser(torch.randn(1, 3, *size))
        assert tokeniser.grid(*size) == (lattice.height, lattice.width) == grid
        assert tokens.shape == (1, len(lattice), 8)


def test_the_performers_dropout_is_on_in_training_only() -> None:
    model, x = build("t2t"), torch.randn(1, 3, 64, 64)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))
    transformer = build("t2t_transformer").train()
    assert torch.equal(transformer(x), transformer(x))


def test_sinusoids_follow_the_formula() -> None:
    table = sinusoid(5, 6)
    for position in range(5):
        for channel in range(6):
            angle = position / 10000 ** (2 * (channel // 2) / 6)
            wanted = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
            assert math.isclose(float(table[0, position, channel]), wanted, abs_tol=1e-6)


def test_positions_are_resampled_bilinearly_and_prefix_rows_stay() -> None:
    ramp = torch.tensor([[9.0], [0.0], [1.0], [0.0], [1.0]])[None]  # a prefix row, then a 2x2 map: 0 1 / 0 1
    assert resize_positions(ramp, (2, 2), Lattice(2, 2, 1)) is ramp
    resized = resize_positions(ramp, (2, 2), Lattice(1, 4, 1))
    assert torch.allclose(resized.flatten(), torch.tensor([9.0, 0.0, 0.25, 0.75, 1.0]))


def test_relative_attention_adds_a_bias_for_each_step_between_two_tokens() -> None:
    height, width, heads, dim = 2, 3, 2, 8
    attention = lively(RelativeAttention(dim, heads, (height, width)))
    x = draw(1, height * width, dim)
    q, k, v = (x[0] @ attention.qkv.weight.T + attention.qkv.bias).split(dim, dim=-1)
    out = []
    for head in range(heads):
        part = slice(head * dim // heads, (head + 1) * dim // heads)
        scores = q[:, part] @ k[:, part].T / math.sqrt(dim / heads)
        for i in range(height * width):
            for j in range(height * width):
                dy, dx = i // width - j // width, i % width - j % width
                row = (dy + height - 1) * (2 * width - 1) + dx + width - 1
                scores[i, j] += attention.relative_position_bias_table[row, head]
        out.append(scores.softmax(-1) @ v[:, part])
    wanted = torch.cat(out, dim=-1) @ attention.proj.weight.T + attention.proj.bias
    assert close(attention(x, (height, width))[0], wanted)


def test_relative_biases_keep_their_values_at_their_own_size_and_a_constant_at_any() -> None:
    table = draw(15, 2)  # steps of a 2x3 map
    assert torch.allclose(resize_bias(table, (2, 3), (2, 3)), table, atol=1e-6)
    assert torch.allclose(resize_bias(torch.ones(15, 2), (2, 3), (4, 7)), torch.ones(7 * 13, 2), atol=1e-5)


def test_a_convolution_merges_patches_and_pads_what_is_left() -> None:
    merge = lively(ConvMerge(3, 5))
    x = draw(1, 3, 3, 4)
    padded = nn.functional.pad(x, (0, 0, 0, 1))
    out = merge(x)
    assert out.shape == (1, 5, 2, 2)
    for i in range(2):
        for j in range(2):
            patch = padded[0, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten()
            raw = merge.proj.weight.flatten(1) @ patch + merge.proj.bias
            assert close(out[0, :, i, j], layer_norm(merge.norm, raw))
    assert merge.norm.eps == 1e-5


def test_uniform_merging_stacks_neighbours_column_by_column() -> None:
    merge = lively(GatherMerge(3, 6))
    x = draw(1, 3, 4, 2)
    out = merge(x)
    for i in range(2):
        around = [x[0, :, 2 * i + dy, dx] for dx in (0, 1) for dy in (0, 1)]
        assert close(out[0, :, i, 0], merge.reduction.weight @ layer_norm(merge.norm, torch.cat(around)))


def test_an_mlp_block_has_one_norm_and_no_attention() -> None:
    block = lively(Block(6, 2, None, eps=1e-5))
    x = draw(1, 4, 6)
    hidden = nn.functional.gelu(block.mlp.fc1(layer_norm(block.norm2, x)))
    assert close(block(x, Lattice(2, 2)), x + block.mlp.fc2(hidden))
    assert not any("norm1" in name for name, _ in block.named_parameters())


def test_reduced_attention_reads_keys_from_a_shrunken_map() -> None:
    model = build("pvt").double()
    block = model.stages[0].blocks[0]
    attention, x = block.attn, draw(1, 16 * 16, 8)
    kernel = attention.sr.weight
    patch_map = x[0].T.unflatten(1, (16, 16))
    shrunken = [
        kernel.flatten(1) @ patch_map[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].flatten() + attention.sr.bias
        for i in range(4)
        for j in range(4)
    ]
    short = layer_norm(attention.norm, torch.stack(shrunken))  # (16, 8)
    q = x[0] @ attention.q.weight.T + attention.q.bias
    k, v = (short @ attention.kv.weight.T + attention.kv.bias).split(8, dim=-1)
    mixed = (q @ k.T / math.sqrt(8)).softmax(-1) @ v
    wanted = mixed @ attention.proj.weight.T + attention.proj.bias
    assert torch.allclose(attention(x, (16, 16))[0], wanted, atol=1e-9)
    assert attention.norm.eps == 1e-5
    assert block.norm1.eps == 1e-6


def test_the_class_token_enters_at_the_last_stage_and_alone_is_classified() -> None:
    model = build("pvt").double()
    assert [stage.prefix for stage in model.stages] == [0, 0, 0, 1]
    x = draw(2, 3, 64, 64)
    patch_map = x
    for stage in model.stages[:3]:
        tokens, lattice = stage(patch_map)
        patch_map = lattice.split(tokens)[1]
    last = model.stages[3]
    merged = last.merge(patch_map).flatten(2).transpose(1, 2)
    tokens = torch.cat((last.cls_token.expand(2, -1, -1), merged), dim=1) + last.pos_embed
    tokens = last.blocks[0](tokens, Lattice(2, 2, 1))
    assert close(model(x), model.head(layer_norm(model.norm, tokens)[:, 0]))


def test_relative_lit_classifies_the_mean_token() -> None:
    model = build("lit").double()
    x = draw(2, 3, 64, 64)
    tokens, _ = model.forward_stages(x)[-1]
    assert close(model(x), model.head(layer_norm(model.norm, tokens).mean(1)))
    assert model.norm.eps == 1e-5
    assert build("lit_absolute").norm.eps == 1e-6
    assert all(block.attn is None for stage in model.stages[:2] for block in stage.blocks)


def test_half_blocks_are_the_halves_of_a_block() -> None:
    for extra, half in (("msa", "attn"), ("mlp", "mlp")):
        torch.manual_seed(0)
        model = EXTRA(extra=extra).double().eval()
        last, x = model.blocks[-1], draw(1, 17, 24)
        norm = last.norm1 if extra == "msa" else last.norm2
        assert close(last(x), x + getattr(last, half)(layer_norm(norm, x)))
        assert len(model.blocks) == 3
        assert model(draw(1, 3, 32, 32)).shape == (1, 5)


def test_only_a_mask_that_learns_on_a_gpu_keeps_cudnns_attention_away() -> None:
    asked = torch.backends.cuda.cudnn_sdp_enabled
    with FakeTensorMode():
        there, here = torch.empty(2, device="cuda", requires_grad=True), torch.empty(2, requires_grad=True)
        with _learning(there):
            assert not asked()
        with _learning(here):
            assert asked()
        with torch.no_grad(), _learning(there):
            assert asked()
        with sdpa_kernel(SDPBackend.MATH), _learning(there):  # somebody chose already
            assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert asked()
