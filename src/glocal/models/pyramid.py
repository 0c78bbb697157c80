"""A pyramid of token stages: the frame that PVT and LIT share, with the manners timm expects of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from timm.models._features import feature_take_indices
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.lattice import Lattice
from glocal.models.classifier import Classifier, start
from glocal.models.positions import Grid
from glocal.models.stage import Stage, grids


class Pyramid(Classifier):
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
        last = {"num_classes": num_classes, "global_pool": global_pool, "eps": eps, "drop_rate": drop_rate}
        super().__init__(stages[-1].dim, stages[-1].prefix, **last)
        self.in_chans = in_chans
        self.stages = nn.ModuleList(stages)
        self.feature_info = [
            {"num_chs": stage.dim, "reduction": 4 * 2**s, "module": f"stages.{s}"} for s, stage in enumerate(stages)
        ]
        # Dense tasks normalise the maps they take (LIT-S: stages 1 to 3).
        self.feature_norms = nn.ModuleDict({str(s): nn.LayerNorm(stages[s].dim, eps=eps) for s in feature_norms})
        self.apply(start)

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
