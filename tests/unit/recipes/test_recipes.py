"""Every recipe that ships can be read, says what to expect, and trains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from glocal.papers import rows
from glocal.recipes.build import build
from glocal.recipes.find import find, listed, names
from glocal.recipes.run import accelerate, open_data, prepare
from glocal.recipes.schema import read
from glocal.train.screen import Silent
from glocal.train.settings import Recipe
from tests.unit.train.tiny import HOST

ALL = {name: recipe for name in names() if (recipe := read(find(name))).task == "classify"}
# Mechanisms that need a host with stages; its recipe still has to train, on the tiny host without them.
_STAGED = ("DTM", "EarlyMLP")


def _kind(recipe: Recipe) -> tuple:
    return (recipe.optim, recipe.mix, recipe.data.augment, recipe.data.repeats, recipe.ema, recipe.precision)


def test_there_are_recipes_for_every_paper_and_they_say_what_to_expect() -> None:
    assert {name.split("/")[0] for name in ALL} == {"life", "localvit", "lit", "cb", "digits"}
    for each in listed():
        assert each.name not in ALL or re.search(r"\d % top-1|No paper", each.head), each.name


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_names_its_own_command(name: str) -> None:
    assert f"# glocal train {name}" in find(name).read_text()


def test_every_row_that_a_paper_trained_on_images_has_its_recipe() -> None:
    told = {each.name: each.head for each in listed()}
    figures = {name.split("/")[0]: set[str]() for name in told}
    for name, head in told.items():
        figures[name.split("/")[0]].update(re.findall(r"[\d.]+(?= % top-1| % with)", head))
    own = re.compile("resnet|deit|t2t|swinv2|localvit|lit_|vit_|pvt_small|pit_b|mixer")
    wanted = [row for row in rows() if row.task == "classify" and own.match(row.model) and "quoted" not in row.note]
    wanted = [row for row in wanted if row.metrics and (row.paper != "lit" or not re.match("resnet|deit", row.model))]
    assert len(wanted) > 70
    for row in wanted:
        for column, digits in (("top1", 1), ("cifar10", 2), ("cifar100", 2), ("tiny_imagenet", 2), ("imagenet100", 2)):
            if column in row.metrics:
                shown = f"{row.metrics[column]:.{2 if row.paper == 'life' else digits}f}"
                assert shown in figures[row.paper], (row.paper, row.table, row.row, column)


@pytest.mark.parametrize("kind", sorted({repr(_kind(recipe)) for recipe in ALL.values()}))
def test_each_kind_of_training_takes_two_steps_on_a_tiny_host(kind: str, tmp_path: Path) -> None:
    recipe = next(recipe for recipe in ALL.values() if repr(_kind(recipe)) == kind)
    _two_steps(recipe, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_recipe_takes_two_steps_on_a_tiny_host(name: str, tmp_path: Path) -> None:
    _two_steps(ALL[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_recipe_builds_its_own_model(name: str) -> None:
    recipe = ALL[name]
    pair = open_data(replace(recipe, data=DataSettings(), host=replace(recipe.host, arguments={"img_size": 8})))
    pair = replace(pair, train=replace(pair.train, pixels=torch.zeros(1, 3, 8, 8, dtype=torch.uint8)))
    with torch.device("meta"):
        assert build(recipe, pair) is not None


def _two_steps(recipe: Recipe, folder: Path) -> None:
    fitting = tuple(each for each in recipe.mechanisms if type(each).__name__ not in _STAGED)
    fitting = tuple(replace(each, layers=None) if getattr(each, "layers", None) else each for each in fitting)[:1]
    host = replace(recipe.host, name="vit_tiny_patch16_224", arguments=dict(HOST))
    data = replace(recipe.data, name="digits", size=8, batch_size=16, limit=64)
    small = replace(recipe, host=host, data=data, mechanisms=fitting, trackers=(), epochs=1)
    loop = prepare(small, open_data(small), accelerate(small, folder), folder, Silent())
    for _, parts in zip(range(2), loop.task.batches(0, 0), strict=False):
        loop._update(0, parts)
    assert loop.step == 2
    assert torch.isfinite(loop.running)


def test_a_recipe_is_found_by_name_file_or_run_folder(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(find("digits/vit_local_ffn").read_text())
    assert find(str(tmp_path)) == find(str(tmp_path / "recipe.yaml")) == tmp_path / "recipe.yaml"
    assert find("life/deit_tiny_cifar100.yaml") == find("life/deit_tiny_cifar100")
    with pytest.raises(GlocalError, match="Did you mean 'life/deit_tiny_cifar100'"):
        find("life/deit_tiny_cifar1000")
