"""Rebuild the model of a finished run from its file, a head on its host included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from glocal.errors import GlocalError
from glocal.recipes.dense import DENSE, build_dense
from glocal.recipes.schema import read
from glocal.recipes.trained import facts_of
from glocal.store import load


def reopen(file: Path) -> nn.Module:
    """Load a saved model; one that detects or segments, says the recipe beside it, is made from the recipe first."""
    recipe_file = file.with_name("recipe.yaml")
    recipe = read(recipe_file) if recipe_file.is_file() else None
    if recipe is not None and recipe.task == "answer":
        raise GlocalError(f"{file.parent} answers questions about images; ask it with glocal predict or glocal eval.")
    if recipe is None or recipe.task not in DENSE:
        return load(file)
    classes = facts_of(file).get("classes")
    if not classes or recipe.head is None:
        raise GlocalError(
            f"neither {file.name} nor {file.with_name('metrics.json')} names the classes, so the head of "
            f"{file.parent.name} cannot be made again. Was the run cut short?"
        )
    bare = replace(recipe, host=replace(recipe.host, pretrained=False), head=replace(recipe.head, backbone=None))
    return load(file, host=build_dense(bare, len(classes)))
