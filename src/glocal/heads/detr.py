"""DETR on any host: a transformer whose learned queries each name one object, or none.

Carion et al., "End-to-End Object Detection with Transformers"; the heads EncDec, EncDec-Linear and EncDec-LIFE are
those of LIFE, Section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glocal.errors import GlocalError
from glocal.heads.detr_loss import SetLoss, to_corners
from glocal.heads.pyramid import Maps, OnHost
from glocal.heads.retinanet import Target
from glocal.lattice import Lattice
from glocal.mechanisms.life import MultiScaleQKV

Projection = Literal["none", "linear", "life"]


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each followed by its norm.

    `project` gives queries, keys and values of their own (LIFE's EncDec-Linear and EncDec-LIFE); the attention keeps
    its input projection all the same, as the paper's counts say.
    """

    def __init__(self, dim: int, heads: int, hidden: int, project: nn.Module | None, drop: float) -> None:
        super().__init__()
        self.project = project
        self.attn = nn.MultiheadAttention(dim, heads, dropout=drop, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = _feed_forward(dim, hidden, drop)
        self.drop = nn.Dropout(drop)

    def forward(self, tokens: Tensor, position: Tensor, absent: Tensor | None, lattice: Lattice) -> Tensor:
        query, key, value = self._project(tokens, lattice)
        mixed, _ = self.attn(query + position, key + position, value, key_padding_mask=absent, need_weights=False)
        tokens = self.norm1(tokens + self.drop(mixed))
        return self.norm2(tokens + self.drop(self.mlp(tokens)))

    def _project(self, tokens: Tensor, lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
        if self.project is None:
            return tokens, tokens, tokens
        qkv = self.project(tokens, lattice) if isinstance(self.project, MultiScaleQKV) else self.project(tokens)
        query, key, value = qkv.chunk(3, dim=-1)
        return query, key, value


class DecoderLayer(nn.Module):
    """The queries look at each other, then at the image."""

    def __init__(self, dim: int, heads: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=drop, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=drop, batch_first=True)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))
        self.mlp = _feed_forward(dim, hidden, drop)
        self.drop = nn.Dropout(drop)

    def forward(
        self, found: Tensor, queries: Tensor, memory: Tensor, position: Tensor, absent: Tensor | None
    ) -> Tensor:
        asked = found + queries
        mixed, _ = self.attn(asked, asked, found, need_weights=False)
        found = self.norm1(found + self.drop(mixed))
        seen, _ = self.cross_attn(
            found + queries, memory + position, memory, key_padding_mask=absent, need_weights=False
        )
        found = self.norm2(found + self.drop(seen))
        return self.norm3(found + self.drop(self.mlp(found)))


class Shares(nn.Module):
    """Turn numbers into shares of the image, in full precision: half of it would round a large image's by pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32)).sigmoid()


class DETR(OnHost):
    """Give losses for images with targets, detections in pixels without; labels count from 0.

    The host's last map is brought to stride 32 by a 3x3 convolution where it is finer, as the paper's counts say.
    """

    masks = False

    def __init__(
        self,
        host: nn.Module,
        classes: int,
        *,
        project: Projection = "none",
        dim: int = 256,
        heads: int = 8,
        layers: int = 6,
        hidden: int = 2048,
        queries: int = 100,
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        self.maps = Maps(host, (-1,), norm=True)
        self.classes = classes
        width, self.stride = self.maps.widths[0], max(self.maps.strides[0], 32)
        step = self.stride // self.maps.strides[0]
        self.reduce = nn.Conv2d(width, dim, 2 * step - 1, stride=step, padding=step - 1)
        self.encoder = nn.ModuleList(
            EncoderLayer(dim, heads, hidden, _projection(project, dim), drop) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, hidden, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.queries = nn.Parameter(torch.randn(queries, dim))
        self.classify = nn.Linear(dim, classes + 1)  # the last one: no object
        self.locate = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4), Shares()
        )
        self.criterion = SetLoss(classes)
        self._start()

    def _start(self) -> None:
        for part in (self.encoder, self.decoder):
            for name, each in part.named_parameters():
                if each.ndim == 2 and "project" not in name:  # LIFE starts in its own way
                    nn.init.xavier_uniform_(each)

    def forward(self, images: Sequence[Tensor] | Tensor, targets: Sequence[Target] | None = None) -> Any:
        batch, sizes, absent = pad(images, self.stride)
        scores, boxes = self.answer(batch, absent)
        if self.training and targets is not None:
            return self.criterion(scores, boxes, targets, sizes, batch.shape[-2:])
        return self._detections(scores[-1], boxes[-1], sizes, batch.shape[-2:])

    def answer(self, images: Tensor, absent: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Give every decoder layer's (L, B, Q, classes + 1) scores and (L, B, Q, 4) boxes, as shares of the image."""
        patch_map = self.reduce(self.maps(images)[0])  # (B, C, H, W)
        lattice = Lattice(*patch_map.shape[-2:])
        if absent is not None:
            absent = F.interpolate(absent[:, None].float(), patch_map.shape[-2:])[:, 0] > 0.5
        position = sine(lattice, patch_map.shape[1], absent, patch_map)
        memory = patch_map.flatten(2).transpose(1, 2)
        hidden = None if absent is None else absent.flatten(1)
        for layer in self.encoder:
            memory = layer(memory, position, hidden, lattice)
        found = [torch.zeros_like(self.queries).expand(len(images), -1, -1)]
        for layer in self.decoder:
            found.append(layer(found[-1], self.queries, memory, position, hidden))
        normed = self.norm(torch.stack(found[1:]))
        return self.classify(normed), self.locate(normed)

    def _detections(self, scores: Tensor, boxes: Tensor, sizes: list[tuple[int, int]], batch: torch.Size) -> list[Any]:
        chances, labels = scores.float().softmax(-1)[..., :-1].max(-1)
        height, width = batch
        scale = boxes.new_tensor((width, height, width, height))
        corners = to_corners(boxes.float()) * scale
        return [
            {
                "boxes": torch.minimum(box.clamp(min=0), box.new_tensor((w, h, w, h))),
                "scores": chance,
                "labels": label,
            }
            for box, chance, label, (h, w) in zip(corners, chances, labels, sizes, strict=True)
        ]


def pad(images: Sequence[Tensor] | Tensor, stride: int) -> tuple[Tensor, list[tuple[int, int]], Tensor | None]:
    """Put images into one batch whose sides are multiples of the stride; the mask says where no image is."""
    sizes = [(each.shape[-2], each.shape[-1]) for each in images]
    height, width = (-(-max(side) // stride) * stride for side in zip(*sizes, strict=True))
    if all(size == (height, width) for size in sizes):
        return images if isinstance(images, Tensor) else torch.stack(list(images)), sizes, None
    padded = [F.pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in images]
    absent = torch.ones(len(sizes), height, width, dtype=torch.bool, device=padded[0].device)
    for row, (h, w) in zip(absent, sizes, strict=True):
        row[:h, :w] = False
    return torch.stack(padded), sizes, absent


def sine(lattice: Lattice, dim: int, absent: Tensor | None, like: Tensor) -> Tensor:
    """Make (B or 1, N, dim) sines of row and column, both scaled to the image's own extent."""
    shape = (1, lattice.height, lattice.width)
    there = like.new_ones(shape, dtype=torch.float32) if absent is None else (~absent).float()
    rows, columns = there.cumsum(1), there.cumsum(2)
    rows = rows / (rows[:, -1:] + 1e-6) * 2 * torch.pi
    columns = columns / (columns[:, :, -1:] + 1e-6) * 2 * torch.pi
    step = torch.arange(dim // 2, device=like.device, dtype=torch.float32)
    scale = 10000 ** (2 * (step // 2) / (dim // 2))
    waves = [_wave(each[..., None] / scale) for each in (rows, columns)]  # (B, H, W, dim / 2) each
    return torch.cat(waves, dim=-1).flatten(1, 2).to(like.dtype)


def _wave(angle: Tensor) -> Tensor:
    return torch.stack((angle[..., 0::2].sin(), angle[..., 1::2].cos()), dim=-1).flatten(-2)


def _projection(kind: Projection, dim: int) -> nn.Module | None:
    if kind == "linear":
        return nn.Linear(dim, 3 * dim)
    if kind != "life":
        return None
    if dim % 4:
        raise GlocalError(f"EncDec-LIFE shares {dim} channels among 4 scales; use a multiple of 4, such as 256.")
    # Four scales of 3x3 steps are the layout that the paper's counts fit; 256 is not a multiple of 3.
    return MultiScaleQKV(dim, (dim // 4,) * 4, (1, 3, 3, 3))


def _feed_forward(dim: int, hidden: int, drop: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(drop), nn.Linear(hidden, dim))
