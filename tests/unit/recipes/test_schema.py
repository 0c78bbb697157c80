"""A recipe is read whole, written back the same, and told all its faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from glocal import LIFE, ContextBroadcast, LocalFFN
from glocal.errors import GlocalError
from glocal.recipes.lines import write
from glocal.recipes.schema import parse, read, with_data

TEXT = """\
# a comment
task: classify
host: {name: deit_tiny_patch16_224, img_size: 32, patch_size: 4, num_classes: 100}
mechanisms:
  - life: {kernels: [1, 3, 5]}
  - cb
data: {name: cifar100, batch_size: 512, augment: deit}
optim: {name: adamw, lr: 5e-4, weight_decay: 0.05, schedule: cosine, warmup_epochs: 5}
distill: {teacher: regnety_160, kind: hard}
epochs: 300
seed: 0
"""


def test_a_recipe_becomes_settings() -> None:
    recipe = parse(TEXT)
    assert recipe.host.arguments == {"img_size": 32, "patch_size": 4, "num_classes": 100}
    assert recipe.mechanisms == (LIFE(), ContextBroadcast())
    assert recipe.optim.lr == 5e-4  # YAML itself would read a word
    assert recipe.data.augment.rand == "rand-m9-mstd0.5-inc1"
    assert recipe.distill is not None
    assert recipe.distill.teacher == "regnety_160"


def test_what_is_written_reads_back_to_the_same_recipe() -> None:
    recipe = parse(TEXT)
    assert parse(write(recipe)) == recipe


def test_mechanisms_may_be_written_as_on_the_command_line() -> None:
    short = parse(TEXT.replace("  - cb\n", '  - "local-ffn(gate=eca)@low"\n'))
    assert short.mechanisms[1] == LocalFFN(gate="eca", layers="low")


def test_all_faults_are_told_at_once_with_line_and_nearest_key() -> None:
    broken = (
        TEXT.replace("kernels", "kernel")
        .replace("epochs: 300", "epoch: 300")
        .replace("cosine", "cosin")
        .replace("0.05", "big")
        .replace("augment: deit", "augment: diet")
        .replace("seed: 0", "seed: zero")
        .replace("kind: hard", "kind: firm, teacher: x")
        .replace("teacher: regnety_160, ", "")
    )
    with pytest.raises(GlocalError) as caught:
        parse(broken, "my.yaml")
    told = str(caught.value).splitlines()
    expected = [
        "my.yaml:5: unknown option 'kernel' of life. Did you mean 'kernels'?",
        "my.yaml:7: unknown augmentation 'diet'. Did you mean 'deit'?",
        "my.yaml:8: optim.weight_decay is 'big'; it takes a number.",
        "my.yaml:8: optim.schedule is 'cosin'; it takes cosine, step, multistep,",
        "my.yaml:9: distill.kind is 'firm'; it takes soft, hard.",
        "my.yaml:10: unknown key 'epoch'. Did you mean 'epochs'?",
        "my.yaml:11: seed is 'zero'; it takes a whole number.",
        "my.yaml: key 'epochs' is missing.",
    ]
    assert len(told) == len(expected)
    for line, start in zip(told, expected, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("epochs: 300", "epochs: 0", "epochs is 0; it must be at least 1"),
        ("lr: 5e-4", "lr: -1", "r.yaml:8: optim.lr is -1; it must be more than 0"),
        ("batch_size: 512", "batch_size: true", "data.batch_size is True; it takes a whole number"),
        ("host: {name", "host: {nam", "key 'name' is missing in host"),
        ("optim: {name: adamw, lr: 5e-4,", "optim: [1] #", "optim is [1]; it takes keys"),
        ("  - cb", "  - {cb: 1, life: 2}", "is not understood. Write `- life`"),
        ("  - cb", "  - bc", "Did you mean 'cb'"),
        ("seed: 0", "seed: 0\nseed: 1", "key 'seed' stands twice"),
        ("seed: 0", "seed: [", "not YAML"),
    ],
)
def test_each_kind_of_fault_is_told_where_it_stands(old: str, new: str, told: str) -> None:
    with pytest.raises(GlocalError) as caught:
        parse(TEXT.replace(old, new), "r.yaml")
    assert told in str(caught.value)


def test_changes_on_the_command_line_reach_any_setting() -> None:
    recipe = parse(TEXT, changes=["optim.lr=0.1", "data.augment=none", "mechanisms=[cbs]", "host.depth=3", "ema=0.9"])
    assert (recipe.optim.lr, recipe.ema, recipe.host.arguments["depth"]) == (0.1, 0.9, 3)
    assert recipe.mechanisms == (ContextBroadcast(scaled=True),)
    for change, told in (
        ("optim.lr", "write key=value"),
        ("optim.rl=1", "Did you mean 'lr'"),
        ("seed.x=1", "not keys"),
    ):
        with pytest.raises(GlocalError, match=told):
            parse(TEXT, changes=[change])


def test_data_on_the_command_line_is_the_folder_of_a_known_set_or_a_set_of_its_own() -> None:
    recipe = parse(TEXT)
    assert with_data(recipe, "/sets/c100").data.root == "/sets/c100"
    own = parse(TEXT.replace("cifar100", "data/imagenet"))
    assert with_data(own, "/sets/mine").data.name == "/sets/mine"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match=r"none\.yaml cannot be read"):
        read(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(GlocalError, match="a recipe is a mapping"):
        read(tmp_path / "list.yaml")
