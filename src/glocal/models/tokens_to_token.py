"""T2T-ViT's tokeniser: soft splits that overlap, with a small transformer step between them.

Yuan et al., "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from timm.layers import Mlp
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.lattice import Lattice

Split = tuple[int, int, int]  # kernel, stride, padding
SPLITS: tuple[Split, ...] = ((7, 4, 2), (3, 2, 1), (3, 2, 1))
SMALL_SPLITS: tuple[Split, ...] = ((3, 2, 1), (3, 2, 1), (1, 1, 0))  # images of 32 or 64 px (LIFE, §4.1)


_SCALE = 2.0**14


class PerformerAttention(nn.Module):
    """Attention in linear time by positive random features (Choromanski et al., 2021), one head, values added back.

    exp(q.k) is estimated as f(q).f(k), with f(x) = exp(w x - |x|^2 / 2) / sqrt(m) for m fixed random rows w.
    """

    def __init__(self, dim: int, out_dim: int, *, drop: float) -> None:
        super().__init__()
        features = out_dim // 2
        self.dim = out_dim
        self.kqv = nn.Linear(dim, 3 * out_dim)
        self.proj = nn.Linear(out_dim, out_dim)
        self.drop = nn.Dropout(drop)
        rows = nn.init.orthogonal_(torch.empty(features, out_dim)) * math.sqrt(features)
        self.w = nn.Parameter(rows, requires_grad=False)

    def features(self, x: Tensor) -> Tensor:
        """Map queries or keys to positive features: (B, N, C) -> (B, N, m)."""
        return torch.exp(x @ self.w.float().T - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(self.w.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(x).chunk(3, dim=-1)
        # Counting runs on "meta", which autocast does not know; torch 2.11 cannot trace the question what it does know.
        kind = "cpu" if x.device.type == "meta" else x.device.type
        with torch.autocast(kind, enabled=False):  # exponentials of squares do not fit half precision
            keys, queries, values = self.features(k.float()), self.features(q.float()), v.float()
            # The released 1e-8 is added to a sum that can be as small. ONNX's optimiser takes such a summand for zero
            # and drops it, so both sides of the fraction are scaled by a power of two, which changes no digit.
            norm = queries @ (_SCALE * keys.sum(dim=1)[..., None])  # (B, N, 1)
            mixed = queries @ (_SCALE * (keys.transpose(1, 2) @ values)) / (norm + _SCALE * 1e-8)
        return v + self.drop(self.proj(mixed.to(v.dtype)))


class TokenAttention(nn.Module):
    """Plain attention of one head that narrows its tokens, values added back.

    Scores are scaled by the width that comes in, not by the head's, as released.
    """

    def __init__(self, dim: int, out_dim: int) -> None:
        super().__init__()
        self.scale = dim**-0.5
        self.qkv = nn.Linear(dim, 3 * out_dim, bias=False)
        self.proj = nn.Linear(out_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)  # each (B, 1, N, C): ONNX knows attention with heads only
        return v[:, 0] + self.proj(F.scaled_dot_product_attention(q, k, v, scale=self.scale)[:, 0])


class TokenStep(nn.Module):
    """Re-structure tokens between two soft splits: attention, then a feed-forward network as wide as the tokens.

    `drop` is always on in training in the Performer's step, as released. `idle_norm` keeps a norm that nobody uses:
    LocalViT's code takes the feed-forward network's norm out of the pass but not out of the checkpoint.
    """

    def __init__(self, dim: int, out_dim: int, *, performer: bool, idle_norm: bool = False, drop: float = 0.1) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = PerformerAttention(dim, out_dim, drop=drop) if performer else TokenAttention(dim, out_dim)
        self.norm2 = nn.LayerNorm(out_dim)
        self.mlp = Mlp(out_dim, out_dim, drop=(0.0, drop) if performer else 0.0)
        self.idle_norm = nn.LayerNorm(out_dim) if idle_norm else None

    def forward(self, tokens: Tensor, lattice: Lattice) -> Tensor:
        tokens = self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class TokensToToken(nn.Module):
    """Turn an image into tokens in three soft splits and two steps; returns the tokens and where they sit."""

    def __init__(
        self,
        dim: int,
        *,
        channels: int = 3,
        token_dim: int = 64,
        performer: bool = True,
        splits: Sequence[Split] = SPLITS,
        idle_norm: bool = False,
    ) -> None:
        super().__init__()
        self.splits = tuple(splits)
        first, second, third = (kernel * kernel for kernel, _, _ in splits)
        manner = {"performer": performer, "idle_norm": idle_norm}
        self.attention1 = TokenStep(channels * first, token_dim, **manner)
        self.attention2 = TokenStep(token_dim * second, token_dim, **manner)
        self.project = nn.Linear(token_dim * third, dim)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Tell the size of the map that an image becomes."""
        for kernel, stride, padding in self.splits:
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        return height, width

    def forward(self, image: Tensor) -> tuple[Tensor, Lattice]:
        patch_map = image
        for split, step in zip(self.splits[:-1], (self.attention1, self.attention2), strict=True):
            tokens, lattice = soft_split(patch_map, split)
            patch_map = lattice.split(step(tokens, lattice))[1]
        tokens, lattice = soft_split(patch_map, self.splits[-1])
        return self.project(tokens), lattice


def soft_split(patch_map: Tensor, split: Split) -> tuple[Tensor, Lattice]:
    """Gather overlapping patches of a map as tokens."""
    kernel, stride, padding = split
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in patch_map.shape[-2:])
    tokens = F.unfold(patch_map, kernel, stride=stride, padding=padding).transpose(1, 2)  # (B, H * W, C * kernel^2)
    return tokens, Lattice(height, width)
