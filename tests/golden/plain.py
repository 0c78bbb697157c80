"""The released networks once more, written out from their equations with the releases' own names, to check ours by.

Each takes a state dict and a (B, 3, H, W) image and returns logits; nothing here uses glocal or timm.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
Act = Callable[[Tensor], Tensor]


def filled(shapes: Mapping[str, tuple[int, ...]], lively: bool = True) -> dict[str, Tensor]:
    """Make weights from names and shapes alone, by the rule that the stored outputs were made with."""
    return {name: _filled(name, shape, lively) for name, shape in shapes.items()}


def _filled(name: str, shape: tuple[int, ...], lively: bool) -> Tensor:
    draw = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    last = name.rpartition(".")[2]
    if last in ("running_var", "logit_scale"):
        return 1.0 + 0.1 * draw.abs()
    if last == "weight" and draw.ndim == 1:
        return 1 + 0.1 * draw
    if last == "running_mean":
        return 0.1 * draw
    if not lively:
        return 0.02 * draw
    if last != "weight":
        return 0.1 * draw
    return draw * ((0.3 if "conv_offset" in name else 1.0) / math.sqrt(draw[0].numel()))


def image(height: int, width: int) -> Tensor:
    """Make the two images that the stored outputs were made with."""
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def relu6(x: Tensor) -> Tensor:
    return x.clamp(0, 6)


def hard_sigmoid(x: Tensor) -> Tensor:
    return (x + 3).clamp(0, 6) / 6


def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x)


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    y = x @ w[f"{name}.weight"].flatten(1).T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def batch_norm(w: Weights, name: str, x: Tensor) -> Tensor:
    mean, var, weight, bias = (
        w[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """Softmax attention of (B, N, C) queries, keys and values, heads side by side in the channels."""
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(-2, -3) for each in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    return (scores.softmax(-1) @ v).transpose(-2, -3).flatten(-2)


def mlp(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.fc2", F.gelu(linear(w, f"{name}.fc1", x)))


def to_map(tokens: Tensor, height: int, width: int) -> Tensor:
    return tokens.transpose(1, 2).unflatten(2, (height, width))


def to_tokens(patch_map: Tensor) -> Tensor:
    return patch_map.flatten(2).transpose(1, 2)


def embedded(w: Weights, picture: Tensor) -> tuple[Tensor, int, int]:
    kernel = w["patch_embed.proj.weight"]
    patches = F.conv2d(picture, kernel, w["patch_embed.proj.bias"], stride=kernel.shape[-1])
    tokens = torch.cat((w["cls_token"].expand(len(picture), -1, -1), to_tokens(patches)), dim=1)
    return tokens + w["pos_embed"], patches.shape[2], patches.shape[3]


# LIFE, Eq. 3-6 -------------------------------------------------------------------------------------------------------


def life_scales(w: Weights, name: str, x: Tensor, shape: tuple[int, int] | None) -> list[Tensor]:
    """Give F1, F2, F3: each scale feeds the next; tokens without a place (no shape) pass the pointwise parts alone."""
    scales = [linear(w, f"{name}.scale1", x)]
    for scale in (2, 3):
        x = scales[-1]
        if shape is not None:
            kernel = w[f"{name}.scale{scale}.depthwise.weight"]
            x = to_tokens(F.conv2d(to_map(x, *shape), kernel, padding=kernel.shape[-1] // 2, groups=x.shape[-1]))
        scales.append(linear(w, f"{name}.scale{scale}.pointwise", x))
    return scales


def life_qkv(
    w: Weights, name: str, tokens: Tensor, shape: tuple[int, int], prefix: int, repeat_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Give Q, K, V: a third of each scale. `repeat_first`: the class token's key is scale 1 thrice, as released."""
    patches = [each.chunk(3, -1) for each in life_scales(w, name, tokens[:, prefix:], shape)]
    aux = [each.chunk(3, -1) for each in life_scales(w, name, tokens[:, :prefix], None)]
    parts: list[Tensor] = []
    for i in range(3):
        first = [aux[0][i]] * 3 if i == 1 and repeat_first else [each[i] for each in aux]
        parts.append(torch.cat((torch.cat(first, -1), torch.cat([each[i] for each in patches], -1)), dim=1))
    q, k, v = parts
    return q, k, v


def life_deit(w: Weights, picture: Tensor, *, heads: int, repeat_first: bool, depth: int = 12) -> Tensor:
    tokens, height, width = embedded(w, picture)
    for i in range(depth):
        block = f"blocks.{i}"
        x = layer_norm(w, f"{block}.norm1", tokens, 1e-6)
        q, k, v = life_qkv(w, f"{block}.attn.qkv", x, (height, width), 1, repeat_first)
        tokens = tokens + linear(w, f"{block}.attn.proj", attention(q, k, v, heads))
        tokens = tokens + mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", tokens, 1e-6))
    return linear(w, "head", layer_norm(w, "norm", tokens, 1e-6)[:, 0])


# LocalViT, Eq. 6-9 ---------------------------------------------------------------------------------------------------


def local_network(w: Weights, name: str, x: Tensor, act: Act) -> Tensor:
    """1x1, depth-wise 3x3 and 1x1 convolutions, each with BatchNorm; squeeze and excitation where there is one."""
    x = act(batch_norm(w, f"{name}.conv.1", F.conv2d(x, w[f"{name}.conv.0.weight"])))
    x = act(batch_norm(w, f"{name}.conv.4", F.conv2d(x, w[f"{name}.conv.3.weight"], padding=1, groups=x.shape[1])))
    last = 6
    if f"{name}.conv.6.fc.0.weight" in w:
        squeezed = linear(w, f"{name}.conv.6.fc.0", x.mean((2, 3))).clamp(min=0)
        x = x * hard_sigmoid(linear(w, f"{name}.conv.6.fc.2", squeezed))[:, :, None, None]
        last = 7
    return batch_norm(w, f"{name}.conv.{last + 1}", F.conv2d(x, w[f"{name}.conv.{last}.weight"]))


def localvit(w: Weights, picture: Tensor, *, heads: int, act: Act = hard_swish, depth: int = 12) -> Tensor:
    tokens, height, width = embedded(w, picture)
    for i in range(depth):
        block = f"blocks.{i}"
        q, k, v = linear(w, f"{block}.attn.qkv", layer_norm(w, f"{block}.norm1", tokens, 1e-6)).chunk(3, -1)
        tokens = tokens + linear(w, f"{block}.attn.proj", attention(q, k, v, heads))
        patches = to_map(tokens[:, 1:], height, width)  # the class token bypasses the network; no norm before it
        patches = patches + local_network(w, f"{block}.conv", patches, act)
        tokens = torch.cat((tokens[:, :1], to_tokens(patches)), dim=1)
    return linear(w, "head", layer_norm(w, "norm", tokens, 1e-6)[:, 0])


def deit(w: Weights, picture: Tensor, *, heads: int, depth: int = 12) -> Tensor:
    tokens, _, _ = embedded(w, picture)
    for i in range(depth):
        block = f"blocks.{i}"
        q, k, v = linear(w, f"{block}.attn.qkv", layer_norm(w, f"{block}.norm1", tokens, 1e-6)).chunk(3, -1)
        tokens = tokens + linear(w, f"{block}.attn.proj", attention(q, k, v, heads))
        tokens = tokens + mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", tokens, 1e-6))
    return linear(w, "head", layer_norm(w, "norm", tokens, 1e-6)[:, 0])


# Swin: windows, shifted in every other block --------------------------------------------------------------------------


def swin(w: Weights, picture: Tensor, *, depths: tuple[int, ...] = (2, 2, 6, 2), first_heads: int = 3) -> Tensor:
    return _swin(w, picture, depths, first_heads, _swin_block, _gathered)


def swinv2(w: Weights, picture: Tensor, *, depths: tuple[int, ...] = (2, 2, 6, 2), first_heads: int = 3) -> Tensor:
    """Swin v2, or LIFE in it: inside each window, after the shift."""
    return _swin(w, picture, depths, first_heads, _swinv2_block, _gathered_v2)


def _swin(w: Weights, picture: Tensor, depths: tuple[int, ...], first_heads: int, block: Any, merge: Any) -> Tensor:
    kernel = w["patch_embed.proj.weight"]
    x = F.conv2d(picture, kernel, w["patch_embed.proj.bias"], stride=kernel.shape[-1]).permute(0, 2, 3, 1)
    x = layer_norm(w, "patch_embed.norm", x, 1e-5)
    for s, depth in enumerate(depths):
        for i in range(depth):
            x = block(w, f"layers.{s}.blocks.{i}", x, first_heads * 2**s, shifted=i % 2 == 1)
        if s < len(depths) - 1:
            x = merge(w, f"layers.{s}.downsample", x)
    return linear(w, "head", layer_norm(w, "norm", x, 1e-5).mean((1, 2)))


def _swin_block(w: Weights, name: str, x: Tensor, heads: int, *, shifted: bool, window: int = 7) -> Tensor:
    def attend(windows: Tensor, apart: Tensor) -> Tensor:
        q, k, v = linear(w, f"{name}.attn.qkv", windows).chunk(3, -1)
        bias = relative_bias(w[f"{name}.attn.relative_position_bias_table"], window, window)
        return linear(w, f"{name}.attn.proj", attention(q, k, v, heads, bias + apart))

    x = x + _in_windows(layer_norm(w, f"{name}.norm1", x, 1e-5), window, shifted, attend)
    if f"{name}.conv.conv.0.weight" in w:
        return x + local_network(w, f"{name}.conv", x.permute(0, 3, 1, 2), hard_swish).permute(0, 2, 3, 1)
    return x + mlp(w, f"{name}.mlp", layer_norm(w, f"{name}.norm2", x, 1e-5))


def _swinv2_block(w: Weights, name: str, x: Tensor, heads: int, *, shifted: bool, window: int = 8) -> Tensor:
    window = min(window, x.shape[1])

    def attend(windows: Tensor, apart: Tensor) -> Tensor:
        if f"{name}.attn.qkv.scale1.weight" in w:  # LIFE has biases of its own; those of the host stay unused
            q, k, v = life_qkv(w, f"{name}.attn.qkv", windows, (window, window), 0, False)
        else:
            q, k, v = linear(w, f"{name}.attn.qkv", windows).chunk(3, -1)
            q, v = q + w[f"{name}.attn.q_bias"], v + w[f"{name}.attn.v_bias"]
        q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (q, k, v))
        cosine = (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).transpose(-1, -2)
        scale = w[f"{name}.attn.logit_scale"].clamp(max=math.log(100)).exp()
        scores = cosine * scale + _continuous_bias(w, f"{name}.attn.cpb_mlp", window) + apart
        return linear(w, f"{name}.attn.proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    x = x + layer_norm(w, f"{name}.norm1", _in_windows(x, window, shifted, attend), 1e-5)
    return x + layer_norm(w, f"{name}.norm2", mlp(w, f"{name}.mlp", x), 1e-5)


def _in_windows(x: Tensor, window: int, shifted: bool, attend: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Let `attend` work on windows of a map, shifted by half a window; tokens from apart must not meet."""
    height, width = x.shape[1:3]
    step = window // 2 if shifted and height > window else 0  # one window: nothing to shift
    apart = x.new_zeros(1, 1, 1, 1)
    if step:
        region = torch.zeros(1, height, width, 1)
        for i, rows in enumerate((slice(-window), slice(-window, -step), slice(-step, None))):
            for j, columns in enumerate((slice(-window), slice(-window, -step), slice(-step, None))):
                region[:, rows, columns] = 3 * i + j
        region = _windows(region, window)[..., 0]
        apart = torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0).repeat(len(x), 1, 1)[:, None]
    y = attend(_windows(x.roll((-step, -step), (1, 2)), window), apart.to(x.dtype))
    return _together(y, window, height, width).roll((step, step), (1, 2))


def _windows(x: Tensor, window: int) -> Tensor:
    x = x.unflatten(2, (-1, window)).unflatten(1, (-1, window))  # (B, rows, window, columns, window, C)
    return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def _together(x: Tensor, window: int, height: int, width: int) -> Tensor:
    x = x.unflatten(1, (window, window)).unflatten(0, (-1, height // window, width // window))
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def relative_steps(height: int, width: int) -> Tensor:
    """Give the step (dy, dx) between each two places of a map, from 0 upwards."""
    place = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    return place[:, None] - place[None] + torch.tensor((height - 1, width - 1))


def relative_bias(table: Tensor, height: int, width: int) -> Tensor:
    step = relative_steps(height, width)
    return table[step[..., 0] * (2 * width - 1) + step[..., 1]].permute(2, 0, 1)


def _continuous_bias(w: Weights, name: str, window: int) -> Tensor:
    """A small network makes the bias from the logarithm of the step; 16 is its limit."""
    step = (relative_steps(window, window) - (window - 1)).to(w[f"{name}.0.weight"].dtype)
    step = 8 * step / (window - 1)
    step = step.sign() * (step.abs() + 1).log2() / 3
    return 16 * torch.sigmoid(linear(w, f"{name}.2", linear(w, f"{name}.0", step).clamp(min=0))).permute(2, 0, 1)


def _four_taps(x: Tensor) -> Tensor:
    return torch.cat((x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]), -1)


def _gathered(w: Weights, name: str, x: Tensor) -> Tensor:
    return linear(w, f"{name}.reduction", layer_norm(w, f"{name}.norm", _four_taps(x), 1e-5))


def _gathered_v2(w: Weights, name: str, x: Tensor) -> Tensor:
    return layer_norm(w, f"{name}.norm", linear(w, f"{name}.reduction", _four_taps(x)), 1e-5)


# LIT with uniform merging: no attention in the first two stages -------------------------------------------------------


def lit_star(w: Weights, picture: Tensor, *, heads: tuple[int, ...] = (3, 6, 12, 24)) -> Tensor:
    """LIT-S*: Swin's merging, relative positions over the whole map, the mean of tokens."""
    x = F.conv2d(picture, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=4).permute(0, 2, 3, 1)
    x = layer_norm(w, "patch_embed.norm", x, 1e-5)
    for s, depth in enumerate((2, 2, 6, 2)):
        for i in range(depth):
            block = f"layers.{s}.blocks.{i}"
            if s >= 2:
                y = layer_norm(w, f"{block}.norm1", x, 1e-5).flatten(1, 2)
                q, k, v = linear(w, f"{block}.attn.qkv", y).chunk(3, -1)
                bias = relative_bias(w[f"{block}.attn.relative_position_bias_table"], *x.shape[1:3])
                x = x + linear(w, f"{block}.attn.proj", attention(q, k, v, heads[s], bias)).view(x.shape)
            x = x + mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", x, 1e-5))
        if s < 3:
            x = _gathered(w, f"layers.{s}.downsample", x)
    return linear(w, "head", layer_norm(w, "norm", x, 1e-5).mean((1, 2)))


def pyramid(w: Weights, picture: Tensor, *, depths: tuple[int, ...], shrink: tuple[int, ...] = (8, 4, 2, 1)) -> Tensor:
    """PVT, or LIT-Ti* where the first stages have no attention: positions in each stage, a class token in the last."""
    patch_map = picture
    for s, depth in enumerate(depths):
        kernel = w[f"patch_embed{s + 1}.proj.weight"]
        x = F.conv2d(patch_map, kernel, w[f"patch_embed{s + 1}.proj.bias"], stride=kernel.shape[-1])
        (height, width), tokens = x.shape[2:], layer_norm(w, f"patch_embed{s + 1}.norm", to_tokens(x), 1e-5)
        if s == 3:
            tokens = torch.cat((w["cls_token"].expand(len(tokens), -1, -1), tokens), dim=1)
        tokens = tokens + w[f"pos_embed{s + 1}"]
        for i in range(depth):
            block = f"block{s + 1}.{i}"
            if f"{block}.attn.proj.weight" in w:
                y = layer_norm(w, f"{block}.norm1", tokens, 1e-6)
                tokens = tokens + _shrunk(w, f"{block}.attn", y, (height, width), (1, 2, 5, 8)[s], shrink[s])
            tokens = tokens + mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", tokens, 1e-6))
        patch_map = to_map(tokens, height, width) if s < 3 else tokens
    return linear(w, "head", layer_norm(w, "norm", patch_map, 1e-6)[:, 0])


def _shrunk(w: Weights, name: str, x: Tensor, shape: tuple[int, int], heads: int, shrink: int) -> Tensor:
    """Attention whose keys and values come from a smaller map, or plain attention where there is one projection."""
    if f"{name}.qkv.weight" in w:
        q, k, v = linear(w, f"{name}.qkv", x).chunk(3, -1)
    else:
        q, small = linear(w, f"{name}.q", x), x
        if shrink > 1:
            reduced = F.conv2d(to_map(x, *shape), w[f"{name}.sr.weight"], w[f"{name}.sr.bias"], stride=shrink)
            small = layer_norm(w, f"{name}.norm", to_tokens(reduced), 1e-5)
        k, v = linear(w, f"{name}.kv", small).chunk(2, -1)
    return linear(w, f"{name}.proj", attention(q, k, v, heads))


# T2T-ViT: soft splits with a Performer between them -------------------------------------------------------------------


def t2t(w: Weights, picture: Tensor, *, depth: int, heads: int = 4) -> Tensor:
    """T2T-ViT, or LocalViT's version of it, tokeniser included."""
    x = picture
    for step, (kernel, stride, padding) in (("attention1", (7, 4, 2)), ("attention2", (3, 2, 1))):
        side = (x.shape[-1] + 2 * padding - kernel) // stride + 1
        tokens = F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2)
        x = to_map(_t2t_step(w, f"tokens_to_token.{step}", tokens, side), side, side)
    side = x.shape[-1] // 2
    tokens = linear(w, "tokens_to_token.project", F.unfold(x, 3, stride=2, padding=1).transpose(1, 2))
    tokens = torch.cat((w["cls_token"].expand(len(tokens), -1, -1), tokens), dim=1) + w["pos_embed"]
    for i in range(depth):
        block = f"blocks.{i}"
        q, k, v = linear(w, f"{block}.attn.qkv", layer_norm(w, f"{block}.norm1", tokens, 1e-5)).chunk(3, -1)
        tokens = tokens + linear(w, f"{block}.attn.proj", attention(q, k, v, heads))
        if f"{block}.conv.conv.0.weight" in w:
            patches = to_map(tokens[:, 1:], side, side)
            patches = patches + local_network(w, f"{block}.conv", patches, hard_swish)
            tokens = torch.cat((tokens[:, :1], to_tokens(patches)), dim=1)
        else:
            tokens = tokens + mlp(w, f"{block}.mlp", layer_norm(w, f"{block}.norm2", tokens, 1e-5))
    return linear(w, "head", layer_norm(w, "norm", tokens, 1e-5)[:, 0])


def _t2t_step(w: Weights, name: str, x: Tensor, side: int) -> Tensor:
    k, q, v = linear(w, f"{name}.kqv", layer_norm(w, f"{name}.norm1", x, 1e-5)).chunk(3, -1)
    rows = w[f"{name}.w"]
    k, q = (
        torch.exp(each @ rows.T - each.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(rows)) for each in (k, q)
    )
    mixed = q @ (k.transpose(1, 2) @ v) / (q @ k.sum(1)[..., None] + 1e-8)
    x = v + linear(w, f"{name}.proj", mixed)
    if f"{name}.conv.conv.0.weight" in w:  # its second norm is still in the checkpoint, but not in the pass
        return x + to_tokens(local_network(w, f"{name}.conv", to_map(x, side, side), hard_swish))
    hidden = F.gelu(linear(w, f"{name}.mlp.0", layer_norm(w, f"{name}.norm2", x, 1e-5)))
    return x + linear(w, f"{name}.mlp.2", hidden)


# TNT: pixels within patches ------------------------------------------------------------------------------------------


def tnt(w: Weights, picture: Tensor, *, heads: int, inner_heads: int, depth: int = 12, patch: int = 16) -> Tensor:
    """The current official TNT: patches are cut out first, each is convolved by itself."""
    norm = partial(layer_norm, w, eps=1e-5)
    count = len(picture)
    cut = F.unfold(picture, patch, stride=patch).transpose(1, 2).reshape(-1, 3, patch, patch)
    pixels = F.conv2d(cut, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=4, padding=3)
    pixels = to_tokens(pixels) + w["inner_pos"]
    tokens = norm("proj_norm2", linear(w, "proj", norm("proj_norm1", pixels.reshape(count, -1, pixels[0].numel()))))
    tokens = torch.cat((w["cls_token"].expand(count, -1, -1), tokens), dim=1) + w["outer_pos"]
    for i in range(depth):
        block = f"blocks.{i}"
        pixels = pixels + _split_attention(w, f"{block}.inner_attn", norm(f"{block}.inner_norm1", pixels), inner_heads)
        pixels = pixels + mlp(w, f"{block}.inner_mlp", norm(f"{block}.inner_norm2", pixels))
        inner = norm(f"{block}.proj_norm1", pixels.reshape(count, -1, pixels[0].numel()))
        inner = norm(f"{block}.proj_norm2", linear(w, f"{block}.proj", inner))
        tokens = torch.cat((tokens[:, :1], tokens[:, 1:] + inner), dim=1)
        tokens = tokens + _split_attention(w, f"{block}.outer_attn", norm(f"{block}.outer_norm1", tokens), heads)
        tokens = tokens + mlp(w, f"{block}.outer_mlp", norm(f"{block}.outer_norm2", tokens))
    return linear(w, "head", norm("norm", tokens)[:, 0])


def _split_attention(w: Weights, name: str, x: Tensor, heads: int) -> Tensor:
    q, k = linear(w, f"{name}.qk", x).chunk(2, -1)
    return linear(w, f"{name}.proj", attention(q, k, linear(w, f"{name}.v", x), heads))
