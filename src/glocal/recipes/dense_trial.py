"""Try a detector or segmenter on empty images of the sizes it will see."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.heads.pyramid import Maps, PyramidNetwork
from glocal.recipes.build import line
from glocal.recipes.dense import build_dense, built_dense, chosen_head, dense_size, refuse_unfit
from glocal.train.settings import Recipe
from glocal.train.tasks.segment import label_scores

PAD = 32  # detectors fill images up to a multiple of this


def try_on_dense(recipe: Recipe, device: torch.device) -> None:
    """Show host and head one empty image, so that what does not fit is told before any file is looked at."""
    chosen = refuse_unfit(recipe)
    # No weights are needed for this.
    plain = replace(recipe, host=replace(recipe.host, pretrained=False), head=replace(chosen, backbone=None))
    if not _fits_by_shapes(plain):
        _try_in_earnest(plain, built_dense(plain, 2).to(device).eval(), device)


def _fits_by_shapes(recipe: Recipe) -> bool:
    """Compute shapes alone: large models take minutes on a processor. What fails here may still fit in truth."""
    with suppress(Exception), torch.no_grad(), torch.device("meta"):
        model = build_dense(recipe, 2).eval()
        for height, width in (_learned(recipe), _measured(recipe)):
            if recipe.task == "segment":
                model(torch.zeros(1, 3, height, width))
                continue
            padded = torch.zeros(1, 3, height + -height % PAD, width + -width % PAD)
            for each in model.modules():  # boxes have no shape beforehand
                if isinstance(each, (Maps, PyramidNetwork)):
                    each(padded)
        return True
    return False


def _try_in_earnest(recipe: Recipe, model: nn.Module, device: torch.device) -> None:
    for size, look in ((_learned(recipe), _as_learned), (_measured(recipe), _as_measured)):
        try:
            with torch.no_grad():
                look(recipe, model, torch.zeros(3, *size, device=device))
        except GlocalError:
            raise
        except Exception as error:  # hosts check their input in many ways, or not at all
            raise GlocalError(
                f"{recipe.host.name} with the head {chosen_head(recipe).name} cannot take images of "
                f"{size[0]}x{size[1]} pixels: {line(error)}. "
                f"Mend data.size, data.dense, head.options, or the host's img_size."
            ) from error


def _as_learned(recipe: Recipe, model: nn.Module, image: Tensor) -> None:
    model([image] if recipe.task == "detect" else image[None])


def _as_measured(recipe: Recipe, model: nn.Module, image: Tensor) -> None:
    if recipe.task == "detect":
        model([image])
    else:
        label_scores(model, [image], dense_size(recipe) if recipe.data.dense.eval_fit == "slide" else None)


def _learned(recipe: Recipe) -> tuple[int, int]:
    """Tell the size of training images, or one of the sizes."""
    dense = recipe.data.dense
    return _photo(min(dense.sides), dense.longest) if dense.fit == "shorter" else dense_size(recipe)


def _measured(recipe: Recipe) -> tuple[int, int]:
    dense = recipe.data.dense
    return _photo(max(dense.sides), dense.longest) if dense.eval_fit == "shorter" else dense_size(recipe)


def _photo(side: int, longest: int) -> tuple[int, int]:
    """Give the shape most photos have."""
    return side, min(side * 4 // 3, longest)
