"""Try a detector or segmenter on empty images of the sizes it will see."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.recipes.build import line
from glocal.recipes.dense import built_dense, chosen_head, dense_size
from glocal.train.settings import Recipe
from glocal.train.tasks.segment import label_scores


def try_on_dense(recipe: Recipe, device: torch.device) -> None:
    """Show host and head one empty image, so that what does not fit is told before any file is looked at."""
    chosen = replace(chosen_head(recipe), backbone=None)  # no weights are needed for this
    host = replace(recipe.host, pretrained=False)
    model = built_dense(replace(recipe, host=host, head=chosen), 2).to(device).eval()
    for size, look in ((_learned(recipe), _as_learned), (_measured(recipe), _as_measured)):
        try:
            with torch.no_grad():
                look(recipe, model, torch.zeros(3, *size, device=device))
        except GlocalError:
            raise
        except Exception as error:  # hosts check their input in many ways, or not at all
            raise GlocalError(
                f"{recipe.host.name} with the head {chosen.name} cannot take images of {size[0]}x{size[1]} pixels: "
                f"{line(error)}. Mend data.size, data.dense, or the host's img_size."
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
