"""Rebuild the model of a finished run from its file, a head on its host included."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from torch import nn

from glocal.errors import GlocalError
from glocal.recipes.dense import DENSE, build_dense
from glocal.recipes.schema import read
from glocal.store import load, read_recipe


def reopen(file: Path) -> nn.Module:
    """Load a saved model; one that detects or segments, says the recipe beside it, is made from the recipe first."""
    recipe_file, metrics_file = file.with_name("recipe.yaml"), file.with_name("metrics.json")
    recipe = read(recipe_file) if recipe_file.is_file() else None
    if recipe is not None and recipe.task == "answer":
        raise GlocalError(f"{file.parent} answers questions about images; ask it with glocal predict or glocal eval.")
    if recipe is None or recipe.task not in DENSE:
        return load(file)
    facts = json.loads(metrics_file.read_text()) if metrics_file.is_file() else read_recipe(file).get("facts", {})
    classes = facts.get("classes")
    if not classes or recipe.head is None:
        raise GlocalError(
            f"neither {file.name} nor {metrics_file} names the classes, so the head of {file.parent.name} cannot be "
            f"made again. Was the run cut short?"
        )
    bare = replace(recipe, host=replace(recipe.host, pretrained=False), head=replace(recipe.head, backbone=None))
    return load(file, host=build_dense(bare, len(classes)))
