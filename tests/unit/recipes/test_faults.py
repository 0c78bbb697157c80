"""Faults in a recipe or in a run's folder end in one clear message, at the place that made them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glocal.data.settings import DataSettings, augment
from glocal.errors import GlocalError
from glocal.recipes.find import find
from glocal.recipes.run import run
from glocal.recipes.schema import parse, read
from glocal.train import checkpoint
from glocal.train.journal import read as log
from glocal.train.screen import Silent
from glocal.train.settings import OptimSettings, Recipe, SaveSettings
from tests.unit.train.tiny import HOST, recipe

DIGITS = "digits/vit_local_ffn"


class _Heard(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def _run(settings: Recipe, folder: Path, **options: Any):
    return run(settings, folder, **{"show": Silent(), **options})


def _told(*changes: str) -> str:
    with pytest.raises(GlocalError) as caught:
        read(find(DIGITS), changes)
    return str(caught.value)


# What stands in the folder after a start that failed


def test_a_run_begun_again_before_any_checkpoint_leaves_its_own_recipe(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(GlocalError, match="not a number|not finite"):
        _run(recipe(optim=OptimSettings(lr=1e30), epochs=1, log_every=1), folder)
    assert (folder / "log.jsonl").exists()
    _run(recipe(epochs=1, log_every=1), folder, resume=True)
    assert read(folder / "recipe.yaml").optim.lr == 1e-3
    assert [line["step"] for line in log(folder / "log.jsonl") if "loss" in line] == [1, 2, 3, 4, 5]
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_start_leaves_nothing_and_blocks_nothing(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    bad = replace(recipe(epochs=1), optim=OptimSettings(name="adamww"), trackers=("tensorboard",))
    with pytest.raises(GlocalError, match="Did you mean 'adamw'"):
        _run(bad, folder)
    assert sorted(each.name for each in tmp_path.rglob("*")) == (["notes.txt", "run"] if there else [])
    _run(recipe(epochs=1), folder)


def test_a_folder_that_a_crash_left_without_a_checkpoint_is_taken(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "recipe.yaml").write_text("seed: 1\n")
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    _run(recipe(epochs=1), tmp_path)
    assert read(tmp_path / "recipe.yaml") == recipe(epochs=1)
    assert log(tmp_path / "log.jsonl")[0]["step"] == 5


def test_results_without_a_checkpoint_are_neither_written_over_nor_gone_on_with(tmp_path: Path) -> None:
    _run(recipe(epochs=1), tmp_path)
    for each in (tmp_path / "checkpoints").glob("*.pt"):
        each.unlink()
    with pytest.raises(GlocalError, match="holds a run already"):
        _run(recipe(epochs=1), tmp_path)
    with pytest.raises(GlocalError, match="no checkpoint to go on from"):
        _run(recipe(epochs=1), tmp_path, resume=True)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_run_whose_last_checkpoint_is_damaged_goes_on_from_the_newest_whole_one(tmp_path: Path, damage: str) -> None:
    settings = recipe(epochs=3, save=SaveSettings(every_epochs=2))
    _run(settings, tmp_path / "whole")
    _run(settings, tmp_path / "torn")
    saved = tmp_path / "torn" / "checkpoints"
    if damage == "gone":
        (saved / "last.pt").unlink()
    else:
        (saved / "last.pt").write_bytes((saved / "last.pt").read_bytes()[:5000])
    (saved / "best.pt").write_bytes(b"none")
    heard = _Heard()
    _run(settings, tmp_path / "torn", resume=True, show=heard)
    assert any("going on from epoch-00002.pt" in note for note in heard.notes)
    steps = [[line["step"] for line in log(tmp_path / name / "log.jsonl")] for name in ("whole", "torn")]
    assert steps[0] == steps[1]
    ends = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "torn")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_none_of_whose_checkpoints_can_be_read_is_refused_and_kept(tmp_path: Path) -> None:
    _run(recipe(epochs=1), tmp_path)
    for each in (tmp_path / "checkpoints").glob("*.pt"):
        each.write_bytes(b"none")
    with pytest.raises(GlocalError, match=r"none of the checkpoints .* can be read: best\.pt, last\.pt"):
        _run(recipe(epochs=1), tmp_path, resume=True)
    assert (tmp_path / "model.safetensors").exists()


# Hosts that cannot be


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"embed_dim": 25}, "cannot be built with .*embed_dim=25.*: dim should be divisible by num_heads"),
        ({"num_heads": 5}, "dim should be divisible by num_heads"),
        ({"num_heads": 0}, "cannot be built"),
        ({"depth": -1}, "cannot be built"),
        ({"img_size": "abc"}, "host.img_size is 'abc'; it takes pixels"),
        ({"img_size": 0}, "host.img_size is 0; it takes pixels"),
        ({"patch_size": "abc"}, "does not take these arguments"),
        ({"in_chans": 7}, "cannot take images of 1 channels and 8x8 pixels"),
        ({"drop_path_rate": 2}, r"blocks\.0\.drop_path1|drops paths with a chance of 2"),
    ],
)
def test_a_host_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    settings = recipe()
    settings = replace(settings, host=replace(settings.host, arguments={**HOST, **arguments}))
    with pytest.raises(GlocalError, match=told):
        _run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_of_a_size_the_host_does_not_take_are_refused(tmp_path: Path) -> None:
    settings = recipe()
    with pytest.raises(GlocalError, match="cannot take images of 1 channels and 10x10 pixels"):
        _run(replace(settings, data=replace(settings.data, size=10)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Words and values of a recipe


def test_yes_and_no_are_words_where_a_setting_takes_them() -> None:
    assert [read(find(DIGITS), [f"data.memory={word}"]).data.memory for word in ("no", "yes", "auto")] == [
        "no",
        "yes",
        "auto",
    ]


def test_yaml_that_cannot_be_read_is_refused_wherever_it_stands() -> None:
    assert "--set 'a=[1': not YAML" in _told("a=[1")
    assert "holds what it lies in" in _told("seed=&x [*x]")
    assert "month must be in 1..12" in _told("seed=2020-13-13")
    assert "too deep" in _told("seed=" + "[" * 3000)
    for text, told in (
        ("host: {name: x}\nseed: &x [*x]\n", r"my\.yaml:2: seed\[0\] holds what it lies in"),
        ("seed: 1\nseed: 2\n", r"my\.yaml:2: key 'seed' stands twice"),
        ("seed: 2020-13-13\n", r"my\.yaml: not YAML: month"),
    ):
        with pytest.raises(GlocalError, match=told):
            parse(text, "my.yaml")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (5, "data.augment is 5; it takes none, shift"),
        (["deit"], "data.augment is ['deit']; it takes none, shift"),
        (None, "data.augment is None"),
        ({"flip": "abc"}, "data.augment.flip is 'abc'; it takes a number"),
        ({"flip": True}, "data.augment.flip is True; it takes a number"),
        ({"flip": float("nan")}, "data.augment.flip is nan; a chance lies between 0 and 1"),
        ({"erase": None}, "data.augment.erase is None; it takes a number"),
        ({"scale": 3, "crop": "resized"}, "data.augment.scale is 3; it takes two numbers"),
        ({"scale": [2, 1]}, "data.augment.scale is (2, 1); it takes the smaller number first"),
        ({"ratio": [0, 1]}, "data.augment.ratio is (0, 1)"),
        ({"jitter": "abc"}, "data.augment.jitter is 'abc'; it takes a number"),
        ({"padding": 1.5, "crop": "pad"}, "data.augment.padding is 1.5; it takes a whole number"),
        ({"padding": -1}, "data.augment.padding is -1; it must be at least 0"),
        ({"preset": 5}, "unknown augmentation 5"),
        ({"crop": "foo"}, "data.augment.crop is 'foo'; it takes none, pad, resized"),
        ({"interpolation": "foo"}, "data.augment.interpolation is 'foo'; it takes bicubic"),
        ({"rand": 9}, "data.augment.rand is 9; it takes a word"),
    ],
)
def test_an_augmentation_that_cannot_be_is_refused(value: Any, told: str) -> None:
    with pytest.raises(GlocalError) as caught:
        augment(value)
    assert told in str(caught.value)


def test_an_augmentation_tells_all_its_faults() -> None:
    with pytest.raises(GlocalError) as caught:
        augment({"flip": 2, "crop": "foo", "colour": 1})
    assert len(str(caught.value).splitlines()) == 3
    assert augment({"flip": "5e-1", "scale": [1, 1]}).flip == 0.5


@pytest.mark.parametrize(
    "change",
    [
        "mix.mixup=-1",
        "mix.cutmix=-1",
        "mix.smoothing=1",
        "optim.lr=.inf",
        "optim.min_lr=-1",
        "optim.eps=-1",
        "optim.betas=[2, 3]",
        "optim.base_batch=0",
        "optim.weight_decay=.nan",
        "optim.clip=0",
        "optim.clip=-1",
        "optim.layer_decay=-1",
        "optim.layer_decay=0",
        "optim.momentum=-3",
        "optim.cooldown_epochs=-1",
        "data.eval_batch_size=-5",
        "data.limit=-5",
        "data.size=0",
        "data.size=[8, 0]",
        "data.crop_pct=0",
        "data.classes=0",
        "save={every_steps: -1}",
        "save.every_epochs=0",
        "save.keep=-1",
        "distill={teacher: x, alpha: 5}",
        "distill={teacher: x, temperature: 0}",
        "head={name: linear}",
        "seed=100000000000000000000000",
    ],
)
def test_a_value_out_of_its_range_is_refused_and_the_change_is_named(change: str) -> None:
    told = _told(change)
    assert told.startswith(f"--set '{change}': ")
    assert len(told.splitlines()) == 1


def test_a_step_schedule_takes_whole_falls() -> None:
    told = _told("optim.schedule=step", "optim.decay_epochs=[0]")
    assert "'optim.decay_epochs=[0]': optim.decay_epochs is (0,); it must be more than 0" in told


def test_a_run_shorter_than_its_warm_up_is_trained_with_a_word(tmp_path: Path) -> None:
    whole = replace(recipe(epochs=3), optim=OptimSettings(warmup_epochs=3))
    assert not whole.length_warning
    for epochs in range(1, 300):
        assert not replace(whole, epochs=epochs, optim=OptimSettings(warmup_epochs=epochs / 10)).length_warning
    notes: list[str] = []
    show = Silent()
    show.note = notes.append  # pyright: ignore
    run(recipe(epochs=1, optim=OptimSettings(warmup_epochs=2)), tmp_path / "run", show=show)
    assert any("warmup_epochs 2 and cooldown_epochs 0 do not fit into epochs 1" in note for note in notes)


def test_faults_of_kind_and_of_range_are_told_together_with_their_lines() -> None:
    text = (
        "host: {nme: vit_tiny_patch16_224}\ndata: {batch_size: 0, size: big}\nepochs: 0\n"
        "optim:\n  lr: abc\n  clip: 0\nmix: {prob: 3, smoothing: 2}\nsed: 1\nhead: {name: linear}\n"
    )
    with pytest.raises(GlocalError) as caught:
        parse(text, "my.yaml")
    assert sorted(str(caught.value).splitlines()) == [
        "my.yaml:1: key 'name' is missing in host. Is 'nme' meant to be it?",
        "my.yaml:2: data.batch_size is 0; it must be at least 1.",
        "my.yaml:2: data.size is 'big'; it takes a whole number or a list of 2 (a whole number) or nothing.",
        "my.yaml:3: epochs is 0; it must be at least 1.",
        "my.yaml:5: optim.lr is 'abc'; it takes a number.",
        "my.yaml:6: optim.clip is 0; it must be more than 0.",
        "my.yaml:7: mix.prob is 3; it lies between 0 and 1.",
        "my.yaml:7: mix.smoothing is 2; it lies between 0 and 1.",
        "my.yaml:8: unknown key 'sed'. Did you mean 'seed'?",
        "my.yaml:9: head 'linear' is for tasks detect and segment. Name the task, or leave head out.",
    ]


def test_a_change_is_blamed_for_what_it_wrote_and_the_file_for_the_rest(tmp_path: Path) -> None:
    assert _told("optim.lr=abc") == "--set 'optim.lr=abc': optim.lr is 'abc'; it takes a number."
    assert _told("mechanisms=[bc]").startswith("--set 'mechanisms=[bc]': unknown mechanism")
    assert _told("data.augment={flip: 3}").startswith("--set 'data.augment={flip: 3}': data.augment.flip is 3")
    assert _told("distill.kind=hard").startswith("--set 'distill.kind=hard': key 'teacher' is missing")
    assert _told("accumulate=5").startswith("--set 'accumulate=5': data.batch_size")
    (tmp_path / "r.yaml").write_text(find(DIGITS).read_text().replace("lr: 2.0e-3", "lr: fast"))
    with pytest.raises(GlocalError, match=r"r\.yaml:14: optim\.lr is 'fast'"):
        read(tmp_path / "r.yaml", ["optim.clip=2"])


def test_faults_of_dense_settings_are_told_together_with_their_lines() -> None:
    text = (
        "task: segmnt\nhost: {name: deit_tiny_patch16_224}\nepochs: 1\nhead: {name: linear}\n"
        "data:\n  name: street\n  dense:\n    sides: []\n    flip: 3\n    fitt: crop\n    scale: [2, 1]\n"
        "    passes: 0\n    jitter: -1\n    longest: 100\n"
    )
    with pytest.raises(GlocalError) as caught:
        parse(text, "my.yaml")
    assert sorted(str(caught.value).splitlines(), key=lambda told: int(told.split(":")[1])) == [
        "my.yaml:1: task is 'segmnt'; it takes classify, detect, segment, answer. Did you mean 'segment'?",
        "my.yaml:8: data.dense.sides is empty; it takes one length or more, such as [480, 512].",
        "my.yaml:9: data.dense.flip is 3; a chance lies between 0 and 1.",
        "my.yaml:10: unknown key 'fitt' in data.dense. Did you mean 'fit'?",
        "my.yaml:11: data.dense.scale is (2, 1); it takes the smaller number first, above 0.",
        "my.yaml:12: data.dense.passes is 0; it must be at least 1.",
        "my.yaml:13: data.dense.jitter is -1; it must be at least 0.",
    ]
    assert "longest is 100; it is no less than the largest of sides, 800" in _told("data.dense={longest: 100}")


def test_settings_made_in_python_tell_all_their_faults() -> None:
    with pytest.raises(GlocalError) as caught:
        DataSettings(batch_size=0, workers=-1)
    assert len(str(caught.value).splitlines()) == 2


# Files


@pytest.mark.parametrize("name", ["a.yml", "a.YAML", "a.Yml"])
def test_a_recipe_file_may_end_in_any_spelling_of_yaml(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(find(DIGITS).read_text())
    assert find(str(tmp_path / name)) == tmp_path / name


def test_a_file_that_is_missing_is_named_as_it_was_given() -> None:
    with pytest.raises(GlocalError, match=r"^'y/nope\.yaml' is neither"):
        find("y/nope.yaml")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_output_that_has_no_room_ends_in_one_line() -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "glocal.cli", "recipes"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["glocal: output cannot be written: No space left on device. Make room."]


def test_a_file_where_a_folder_is_wanted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for fails in (
        lambda: checkpoint.write_json(tmp_path / "file" / "plan.json", {}),
        lambda: _run(recipe(), tmp_path / "file"),
    ):
        with pytest.raises(GlocalError, match="cannot be (written|used for a run)"):
            fails()
    assert (tmp_path / "file").read_text() == "mine"
