from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from glocal import GlocalError, load, load_released, save
from glocal.cli import app
from glocal.released.load import STRUCTURAL, signature
from tests.golden import plain

SMALL = "life_deit_tiny_patch4_32_base"  # the smallest release whose names and shapes are its own
LIFE = "life_deit_tiny_patch4_32"


def weights(release: str = SMALL) -> dict[str, Tensor]:
    return plain.filled({name: entry.shape for name, entry in signature(release).items()})


def test_a_release_is_recognised_by_its_names_and_shapes() -> None:
    model: Any = load_released(weights())
    assert (model.glocal.name, model.num_classes, model.training) == ("deit_tiny_patch4_32", 100, False)


def test_releases_that_only_their_name_tells_apart_are_listed() -> None:
    with pytest.raises(GlocalError, match=f"name='{LIFE}' or name='{LIFE}_eq6key'"):
        load_released(weights(LIFE))


def test_the_released_key_and_the_papers_are_both_there() -> None:
    image = plain.image(32, 32)[:1]
    released, paper = (load_released(weights(LIFE), name)(image) for name in (LIFE, f"{LIFE}_eq6key"))
    assert (released - paper).abs().max() > 1e-2


def test_what_is_missing_or_left_over_is_listed_and_nothing_is_loaded() -> None:
    given = weights()
    del given["blocks.3.attn.proj.bias"]
    given["blocks.0.extra.weight"] = torch.zeros(2)
    given["norm.weight"] = torch.zeros(7)
    with pytest.raises(GlocalError) as caught:
        load_released(given)
    for part in (
        "1 missing: blocks.3.attn.proj.bias",
        "1 left over: blocks.0.extra.weight",
        "norm.weight is (7,), not (192,)",
        "Nothing was loaded",
        SMALL,
    ):
        assert part in str(caught.value)


def test_the_error_names_the_release_that_was_asked_for() -> None:
    with pytest.raises(GlocalError, match="does not fit localvit_tiny_mlp6_act1"):
        load_released(weights(), "localvit_tiny_mlp6_act1")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(GlocalError, match=r"unknown release 'lit_t'. Did you mean 'lit_ti'\?"):
        load_released(weights(), "lit_t")


def test_another_architecture_is_refused() -> None:
    other = {f"layer{i}.conv{j}.weight": torch.zeros(4, 4, 3, 3) for i in range(1, 4) for j in (1, 2)}
    with pytest.raises(GlocalError, match="are of no release that glocal knows"):
        load_released(other)


def test_another_class_count_is_refused_unless_asked_for() -> None:
    given = weights()
    given["head.weight"], given["head.bias"] = torch.randn(10, 192), torch.randn(10)
    with pytest.raises(GlocalError, match=r"a head of 10 classes; the release has 100. Pass num_classes=10"):
        load_released(given)
    model: Any = load_released(given, num_classes=10)
    assert torch.equal(model.head.weight, given["head.weight"])


def test_both_heads_of_a_distilled_model_are_loaded_or_made_anew() -> None:
    given = weights("deit_tiny_distilled_patch16_224")
    model: Any = load_released(given)
    assert torch.equal(model.head_dist.weight, given["head_dist.weight"])
    model = load_released(given, num_classes=3)
    assert (model.head.weight.shape[0], model.head_dist.weight.shape[0]) == (3, 3)


def test_a_head_without_classes_is_refused() -> None:
    with pytest.raises(GlocalError, match="num_classes is 0"):
        load_released(weights(), num_classes=0)


def test_a_fresh_head_of_any_size_is_offered() -> None:
    given = weights()
    model: Any = load_released(given, num_classes=7)
    assert model.head.weight.shape == (7, 192)
    assert torch.equal(model.norm.weight, given["norm.weight"])


@pytest.mark.parametrize("release", ["localvit_tiny_mlp4_act3_r192", "swin_tiny_localvit_repo"])
def test_structural_entries_may_be_there_or_not(release: str) -> None:
    given = weights(release)
    places = {"localvit": "blocks.0.conv.conv.1.num_batches_tracked", "swin": "layers.0.blocks.1.attn_mask"}
    extra = {**given, places[release.split("_")[0]]: torch.tensor(5)}
    extra["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.long)
    assert not any(name.endswith(STRUCTURAL) for name in given)
    one, two = load_released(given).state_dict(), load_released(extra).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_swinv2_biases_that_the_release_never_uses_become_zero() -> None:
    given = weights("life_swinv2_tiny_window8_32_patch1")
    assert given["layers.0.blocks.0.attn.q_bias"].abs().max() > 0
    model = load_released(given)
    idle = [each for name, each in model.named_parameters() if name.endswith(("q_bias", "v_bias"))]
    assert len(idle) == 24
    assert all(not each.any() for each in idle)


@pytest.mark.parametrize("release", ["swin_tiny_localvit_repo", "tnt_s"])
def test_checkpoints_with_our_own_names_load_too(release: str) -> None:
    model = load_released(weights(release))
    again = load_released(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_wrappings_of_training_scripts_are_taken_off(tmp_path: Path) -> None:
    wrapped = {
        "model": {f"module.{name}": each for name, each in weights().items()},
        "epoch": 299,
        "args": argparse.Namespace(lr=5e-4),
    }
    torch.save(wrapped, tmp_path / "checkpoint.pth")
    model: Any = load_released(tmp_path / "checkpoint.pth")
    assert torch.equal(model.head.bias, weights()["head.bias"])


def test_safetensors_files_load(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    model: Any = load_released(tmp_path / "model.safetensors")
    assert model.glocal.name == "deit_tiny_patch4_32"


@pytest.mark.parametrize("kept", [0, 10, 5000, 1_000_000])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.pth"
    torch.save(weights(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(GlocalError, match="not a whole checkpoint file"):
        load_released(path)


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("trapped"),))


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_code_in_a_pickle_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write({"model": weights(), "extra": _Trap()}, tmp_path / "trap.pth")
    with pytest.raises(GlocalError):
        load_released(tmp_path / "trap.pth")
    assert not Path("trapped").exists()


def test_the_refusal_says_what_else_the_file_holds(tmp_path: Path) -> None:
    torch.save({"model": weights(), "extra": _Trap()}, tmp_path / "trap.pth")
    with pytest.raises(GlocalError, match="holds more than tensors .*glocal runs no code from a checkpoint"):
        load_released(tmp_path / "trap.pth")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"model": {"a": 3}}, "'a' is a int"),
        ({}, "it is empty"),
        ("nowhere.pth", "nowhere.pth is not a file"),
    ],
)
def test_what_is_no_state_dict_is_refused(source: Any, complaint: str) -> None:
    with pytest.raises(GlocalError, match=complaint):
        load_released(source)


@pytest.mark.parametrize("release", [LIFE, "tnt_s", "localvit_t2t_7"])
def test_a_loaded_release_can_be_saved_and_read_back(tmp_path: Path, release: str) -> None:
    model = load_released(weights(release), release)
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    side = 32 if "_32" in release else 224
    with torch.no_grad():
        assert torch.equal(model(plain.image(side, side)[:1]), again(plain.image(side, side)[:1]))


def test_convert_writes_a_file_that_load_reads(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "in.pth")
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "in.pth"), "-o", str(tmp_path / "out.safetensors")])
    assert done.exit_code == 0, done.output
    assert "deit_tiny_patch4_32, 5.380 M parameters" in done.output
    model: Any = load(tmp_path / "out.safetensors")
    assert torch.equal(model.head.bias, weights()["head.bias"])


def test_convert_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    torch.save(weights(LIFE), tmp_path / "in.pth")
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "in.pth"), "-o", str(tmp_path / "out.safetensors")])
    assert isinstance(done.exception, GlocalError)
    assert [path.name for path in tmp_path.iterdir()] == ["in.pth"]
