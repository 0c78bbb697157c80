"""A pyramid of token stages: the frame that PVT and LIT share, with the manners timm expects of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers import trunc_normal_
from timm.layers.pool1d import global_pool_nlc
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.lattice import Lattice
from glocal.models.positions import Grid
from glocal.models.stage import Stage, grids


class Pyramid(nn.Module):
    """Stages of growing width and shrinking map, a last LayerNorm and a linear classifier."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        num_classes: int,
        global_pool: str,
        eps: float,
        drop_rate: float,
        in_chans: int,
        feature_norms: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.in_chans, self.global_pool = in_chans, global_pool
        self.stages = nn.ModuleList(stages)
        self.num_features = self.head_hidden_size = self.embed_dim = stages[-1].dim
        self.num_prefix_tokens = stages[-1].prefix
        self.feature_info = [
            {"num_chs": stage.dim, "reduction": 4 * 2**s, "module": f"stages.{s}"} for s, stage in enumerate(stages)
        ]
        # Dense tasks normalise the maps they take (LIT-S: stages 1 to 3).
        self.feature_norms = nn.ModuleDict({str(s): nn.LayerNorm(stages[s].dim, eps=eps) for s in feature_norms})
        self.norm = nn.LayerNorm(self.num_features, eps=eps)
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.apply(_init)

    def forward_stages(self, image: Tensor, count: int | None = None) -> list[tuple[Tensor, Lattice]]:
        """Return the tokens of every stage, or of the first `count`, and where they sit."""
        outputs: list[tuple[Tensor, Lattice]] = []
        patch_map = image
        for stage in self.stages[:count]:
            outputs.append(stage(patch_map))
            tokens, lattice = outputs[-1]
            patch_map = lattice.split(tokens)[1]
        return outputs

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last stage's tokens, normalised."""
        return self.norm(self.forward_stages(x)[-1][0])

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool the tokens and classify them."""
        x = self.head_drop(global_pool_nlc(x, self.global_pool, num_prefix_tokens=self.num_prefix_tokens))
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the maps of chosen stages, as timm's models do; `norm` touches the last stage, which alone has one."""
        if output_fmt != "NCHW":
            raise GlocalError(f"a pyramid's stages give maps; output_fmt is {output_fmt!r}, use 'NCHW'.")
        taken, deepest = feature_take_indices(len(self.stages), indices)
        outputs = self.forward_stages(x, deepest + 1 if stop_early and intermediates_only else None)
        maps = [self._feature(s, *outputs[s], norm) for s in taken]
        return maps if intermediates_only else (self.norm(outputs[-1][0]), maps)

    def _feature(self, s: int, tokens: Tensor, lattice: Lattice, norm: bool) -> Tensor:
        if str(s) in self.feature_norms:
            tokens = self.feature_norms[str(s)](tokens)
        elif norm and s == len(self.stages) - 1:
            tokens = self.norm(tokens)
        return lattice.split(tokens)[1].contiguous()  # (B, C, H, W)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what chosen intermediates do not need."""
        taken, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return taken

    def no_weight_decay(self) -> set[str]:
        """Name the parameters that want no weight decay; position tables do decay, as the authors train them."""
        return {n for n, _ in self.named_parameters() if re.search(r"cls_token$|relative_position_bias_table$", n)}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Group parameters by depth for layer-wise rates."""
        inner = [
            (r"^stages\.(\d+)\.(?:merge|pos_embed|cls_token)", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ]
        return {
            "stem": r"^stages\.0\.(?:merge|pos_embed)",
            "blocks": [(r"^stages\.(\d+)", None), (r"^norm", (99999,))] if coarse else inner,
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks during backward instead of storing their activations."""
        for stage in self.stages:
            stage.grad_checkpointing = enable  # pyright: ignore[reportArgumentType]

    def set_input_size(self, img_size: int | Grid) -> None:
        """Make another image size the usual one; any other still works, by resampling on the way."""
        for stage, grid in zip(self.stages, grids(img_size, len(self.stages)), strict=True):
            assert isinstance(stage, Stage)
            stage.resize(grid)

    def get_classifier(self) -> nn.Module:
        """Return the classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier; 0 classes leave none."""
        pool = self.global_pool if global_pool is None else global_pool
        if pool not in ("", "avg", "token") or (pool == "token" and not self.num_prefix_tokens):
            choices = "'token', 'avg' or ''" if self.num_prefix_tokens else "'avg' or '' (it has no class token)"
            raise GlocalError(f"{type(self).__name__} cannot pool by {pool!r}; use {choices}.")
        self.global_pool, self.num_classes = pool, num_classes
        like = self.norm.weight if isinstance(self.norm, nn.LayerNorm) else torch.empty(0)
        new = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head = new.to(like.device, like.dtype).train(self.training)
        self.head.apply(_init)


def _init(module: nn.Module) -> None:
    # Convolutions keep the framework's start, as released.
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, Stage):
        for table in (module.cls_token, module.pos_embed):
            if table is not None:
                trunc_normal_(table, std=0.02)
