"""Every recipe that answers questions can be read, says what to expect, and trains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glocal.data.questions import Vqa
from glocal.errors import GlocalError
from glocal.mechanisms import ContextBroadcast
from glocal.papers import rows
from glocal.recipes.answer import open_answer, refuse_unfit
from glocal.recipes.find import find, listed, names
from glocal.recipes.run import accelerate, prepare
from glocal.recipes.schema import parse, read
from glocal.train.optim import groups
from glocal.train.screen import Silent
from tests.question_sets import write_vilt, write_vqa

ALL = {name: recipe for name in names() if (recipe := read(find(name))).task == "answer"}
TASK = "task: answer\nhost: {name: x}\nepochs: 1\n"
DATA = "data: {name: x}\n"


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_names_its_command_and_what_to_expect(name: str) -> None:
    assert f"# glocal train {name} " in find(name).read_text()
    assert re.search(r"\d % VQA accuracy", next(each.head for each in listed() if each.name == name))


def test_every_row_of_the_table_has_its_recipe() -> None:
    heads = [each.head for each in listed() if each.name in ALL]
    own = [row for row in rows() if row.task == "answer"]
    assert len(own) == len(heads) == 4
    for row in own:
        (accuracy,) = row.metrics.values()
        assert any(f"{accuracy:.2f} % VQA accuracy" in head for head in heads), row
    grafted = {
        each.tokens for recipe in ALL.values() for each in recipe.mechanisms if isinstance(each, ContextBroadcast)
    }
    assert grafted == {"image", "text", "all"}


@pytest.mark.parametrize("name", ALL)
def test_each_recipe_takes_two_steps_on_a_tiny_host(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="ViLT comes with glocal[transformers]")
    recipe = ALL[name]
    host = replace(recipe.host, name=str(write_vilt(tmp_path / "host")))
    data = replace(recipe.data, name=str(write_vqa(tmp_path / "set")), size=32, batch_size=4, workers=0, vqa=Vqa(2))
    tiny = replace(recipe, host=host, data=data, trackers=(), epochs=1, precision="fp32")
    loop = prepare(tiny, open_answer(tiny), accelerate(tiny, tmp_path), tmp_path, Silent())
    assert loop.model.config.hidden_dropout_prob == 0.1
    assert len(loop.model.glocal.grafts if recipe.mechanisms else []) == 2 * len(recipe.mechanisms)
    rates = {id(each): group["lr_scale"] for group in groups(loop.model, tiny.optim) for each in group["params"]}
    for path, each in loop.model.named_parameters():
        assert rates[id(each)] == (0.1 if path.startswith("vilt.") else 1.0), path
    for _, parts in zip(range(2), loop.task.batches(0, 0), strict=False):
        loop._update(0, parts)
    assert loop.step == 2
    assert torch.isfinite(loop.running)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("mix: {smoothing: 0.1}", "mix and distill are for task classify"),
        ("head: {name: linear}", "asks for linear"),
        ("head: {name: mlp, backbone: runs/x}", "options that this head has not"),
        ("data: {augment: {crop: resized}}", "crop and erase hide what may be asked about"),
        ("compile: true", "compile does not go with task answer"),
    ],
)
def test_settings_that_the_task_does_not_know_are_refused(more: str, told: str) -> None:
    with pytest.raises(GlocalError, match=told):
        refuse_unfit(parse(TASK + (more if "data" in more else DATA + more)))
    refuse_unfit(parse(TASK + DATA + "head: {name: mlp, host_lr: 0.5}"))


def test_a_threshold_below_one_is_refused_with_its_line() -> None:
    with pytest.raises(GlocalError, match=r"recipe:4: data.vqa.least is 0; it must be at least 1"):
        parse(TASK + "data: {vqa: {least: 0}}")
