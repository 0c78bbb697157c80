"""glocal eval as a user calls it for ImageNet and for spoilt images, and what it says when something is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo

from glocal.cli import main
from glocal.recipes.by_name import open_classifier
from glocal.recipes.lines import write as recipe_text
from glocal.store import save
from glocal.zoo import create_model
from tests.end_to_end.test_dense import RECIPE, SEGMENT
from tests.imagenet_sets import write_folders, write_real, write_validation
from tests.unit.train.tiny import recipe

WNIDS = ImageNetInfo().label_names()
TINY = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 3}


@pytest.fixture
def glocal(monkeypatch, capfd, tmp_path: Path):
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["glocal", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Save an ImageNet-1k model of its own width, on images that are not square."""
    save(create_model("deit_tiny_patch16_224", **TINY), tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"


def _pictures(root: Path, names: tuple[str, ...], count: int = 4) -> Path:
    draw = np.random.default_rng(0)
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def test_a_run_is_measured_on_spoilt_images(glocal, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(recipe_text(recipe("life+cb", epochs=30, limit=None)))
    assert glocal("train", "r.yaml", "-o", "run")[0] == 0
    code, out, err = glocal("eval", "run", "--spoilt", 1, "--epsilon", "8/255", "--epsilon", 0.25, "--hide", 0.5)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        "clean",
        "centre_hidden_0.5",
        "fgsm_8/255",
        "fgsm_0.25",
    ]
    code, out, _ = glocal("eval", "run", "--spoilt", 1, "--epsilon", "8/255", "--epsilon", 0.25, "--format", "json")
    rows = {row["name"]: row for row in json.loads(out)}
    clean, hidden, near, far = (rows[each] for each in ("clean", "centre_hidden_0.5", "fgsm_8/255", "fgsm_0.25"))
    assert clean["top1"] == json.loads((tmp_path / "run" / "metrics.json").read_text())["top1"] > 80
    assert clean["images"] == hidden["images"] == far["images"] == 450
    assert hidden["top1"] < clean["top1"] - 20
    assert far["top1"] < near["top1"] < clean["top1"]
    again = glocal(
        "eval", "run", "--spoilt", 1, "--epsilon", "8/255", "--epsilon", 0.25, "--format", "json", "--batch", 7
    )
    found = {r["name"]: r["top1"] for r in json.loads(again[1])}
    assert found == pytest.approx({name: row["top1"] for name, row in rows.items()}, abs=0.5)


def test_imagenet_in_each_of_its_forms(glocal, model: Path, tmp_path: Path) -> None:
    val = _pictures(tmp_path / "val", tuple(WNIDS), 1)
    code, out, err = glocal("eval", model, "--data", val, "--format", "json")
    assert code == 0, err
    assert [json.loads(out)[0][key] for key in ("images", "among")] == [1000, 1000]
    assert "mean 0.485, 0.456, 0.406" in err
    a = _pictures(tmp_path / "a", (WNIDS[6], WNIDS[11], WNIDS[13]))
    code, out, err = glocal("eval", model, "--data", a, "--format", "json", "--per-class")
    assert code == 0, err
    assert "3 of the model's 1000 classes" in err
    among_three = json.loads(out)
    assert [row["class"] for row in among_three] == ["all", WNIDS[6], WNIDS[11], WNIDS[13]]
    assert (among_three[0]["images"], among_three[0]["among"], among_three[0]["top5"]) == (12, 3, 100)
    code, out, _ = glocal("eval", model, "--data", a, "--format", "json", "--all-classes")
    assert json.loads(out)[0]["among"] == 1000
    code, out, err = glocal("eval", model, "--data", a, "--spoilt", 1, "--format", "csv", "--fill", "mean")
    assert code == 0, err
    assert out.splitlines()[2].startswith("centre_hidden_0.5_mean,12,")
    v2 = write_folders(tmp_path / "v2", {str(n): [n] for n in range(1000)})
    code, out, _ = glocal("eval", model, "--data", v2, "--format", "json")
    assert json.loads(out)[0]["images"] == 1000
    flat = write_validation(tmp_path / "flat", {place: place for place in range(6)})
    real = write_real(tmp_path / "real.json", {0: [1], 3: [3, 4, 5], 5: [999]})
    code, out, _ = glocal("eval", model, "--data", flat, "--labels", real, "--format", "json")
    assert [json.loads(out)[0][key] for key in ("images", "loss", "among")] == [3, None, 1000]
    code, _, err = glocal("eval", model, "--data", flat, "--labels", "real")
    assert code == 2
    assert "lacks 46,832 of the 46,837 images that have labels" in err


def test_a_models_figure_is_what_its_own_answers_give(glocal, model: Path, tmp_path: Path) -> None:
    a = _pictures(tmp_path / "a", (WNIDS[6], WNIDS[11]))
    look = ("--mean", 0.5, "--std", "0.2,0.3,0.4", "--crop", 1)
    rows = json.loads(glocal("eval", model, "--data", a, *look, "--format", "json")[1])
    tiny = timm.create_model("deit_tiny_patch16_224", **TINY).eval()
    from safetensors.torch import load_file

    tiny.load_state_dict(load_file(model))
    to_tensor = timm.data.create_transform((16, 24), mean=(0.5,) * 3, std=(0.2, 0.3, 0.4), crop_pct=1.0)
    files = sorted(a.rglob("*.png"))
    with torch.no_grad():
        answers = tiny(torch.stack([to_tensor(Image.open(each).convert("RGB")) for each in files]))  # pyright: ignore
    right = answers[:, [6, 11]].argmax(dim=1) == torch.tensor([WNIDS.index(each.parent.name) for each in files]).eq(11)
    assert rows[0]["top1"] == pytest.approx(100 * right.float().mean().item())


def test_weights_of_a_file_go_into_a_model_by_name(glocal, tmp_path: Path) -> None:
    a = _pictures(tmp_path / "a", (WNIDS[6], WNIDS[11]), 1)
    host = timm.create_model("deit_tiny_patch16_224")
    torch.save({"model": host.state_dict()}, tmp_path / "deit.pth")
    wanted = None
    for words in (("deit.pth",), ("deit_tiny_patch16_224", "--checkpoint", "deit.pth")):
        code, out, err = glocal("eval", *words, "--data", a, "--format", "json")
        assert code == 0, err
        wanted = wanted or json.loads(out)
        assert json.loads(out) == wanted
    torch.save(create_model("deit_tiny_patch16_224_life").state_dict(), tmp_path / "life.pth")
    code, out, err = glocal("eval", "deit_tiny_patch16_224_life", "--checkpoint", "life.pth", "--data", a)
    assert code == 0, err
    plain = timm.create_model("vit_tiny_patch16_224").state_dict()
    torch.save(plain, tmp_path / "cb.pth")  # CB has no weights, so its model may come with the host's names
    model = open_classifier("vit_tiny_patch16_224_cb", checkpoint=tmp_path / "cb.pth").model
    assert all(torch.equal(ours.cpu(), plain[name.replace(".host.", ".")]) for name, ours in model.state_dict().items())
    assert any(".host." in name for name in model.state_dict())
    code, _, err = glocal("eval", "deit_tiny_patch16_224_life", "--checkpoint", "deit.pth", "--data", a)
    assert code == 2
    assert "deit.pth do not fit the model: missing blocks.0.attn.qkv" in err


def test_timms_weights_are_shown_images_as_timm_shows_them(glocal, tmp_path: Path, monkeypatch) -> None:
    build, asked = timm.create_model, []

    def without_download(name: str, pretrained: bool = False, **arguments: object) -> torch.nn.Module:
        asked.append((name, pretrained))
        return build(name, **arguments)

    monkeypatch.setattr(timm, "create_model", without_download)
    a = _pictures(tmp_path / "a", (WNIDS[6], WNIDS[11]), 1)
    code, out, err = glocal("eval", "vit_tiny_patch16_224", "--pretrained", "--data", a, "--format", "json")
    assert code == 0, err
    assert asked == [("vit_tiny_patch16_224", True)]
    assert json.loads(out)[0]["images"] == 2
    assert "224x224 pixels, mean 0.5, 0.5, 0.5, std 0.5, 0.5, 0.5, the middle 90 %" in err


def test_a_segmenter_is_not_asked_what_only_classifiers_answer(glocal, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(RECIPE.format(head="{name: linear}", data="camvid", **SEGMENT))
    code, _, err = glocal("eval", "run", "--labels", "real", "--crop", 0.9, "--spoilt", 1, "--fill", "mean")
    assert code == 2
    assert "--labels, --crop, --fill are for classifiers; run detects or segments. Leave them out." in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["deit_tiny_patch16_224", "--data", "a"], "by its name alone has random weights"),
        (["deit_tinny_patch16_224", "--pretrained", "--data", "a"], "Did you mean 'deit_tiny_patch16_224'"),
        (["lit_tiny", "--pretrained", "--data", "a"], "the pretrained weights of lit_tiny cannot be had"),
        (["lit_tiny", "--pretrained", "--checkpoint", "x.pth", "--data", "a"], "not both"),
        (["lit_tiny", "--checkpoint", "x.pth", "--data", "a"], "x.pth is not a file"),
        (["tiny.safetensors", "--pretrained", "--data", "a"], "tiny.safetensors has its own. Leave it out"),
        (["tiny.safetensors"], "no images of its own; say which to measure: --data FOLDER"),
        (["tiny.safetensors", "--data", "nowhere"], "neither a folder"),
        (["tiny.safetensors", "--data", "a", "--labels", "x.json"], "x.json is not a file"),
        (["tiny.safetensors", "--data", "a", "--labels", "real", "--spoilt", "1"], "Ask for these separately"),
        (["tiny.safetensors", "--data", "a", "--labels", "real", "--all-classes"], "leave --all-classes out"),
        (["tiny.safetensors", "--data", "a", "--spoilt", "1", "--per-class"], "make two tables"),
        (["tiny.safetensors", "--data", "a", "--epsilon", "1/255"], "give --spoilt 1 too"),
        (["tiny.safetensors", "--data", "a", "--spoilt", "1", "--epsilon", "x"], "such as 1/255 or 0.01, not 'x'"),
        (["tiny.safetensors", "--data", "a", "--spoilt", "1", "--hide", "1.5"], "share of 1.5"),
        (["tiny.safetensors", "--data", "a", "--mean", "x"], "--mean 'x' is no list of numbers"),
        (["tiny.safetensors", "--data", "a", "--std", "0,1,1"], "a deviation is above 0"),
        (
            ["tiny.safetensors", "--data", "a", "--std", "1,1"],
            "--std has 2 numbers; the model's images have 3 channels",
        ),
    ],
)
def test_mistakes_end_in_one_message(glocal, model: Path, tmp_path: Path, words: list[str], told: str) -> None:
    _pictures(tmp_path / "a", (WNIDS[6], WNIDS[11]), 1)
    code, out, err = glocal("eval", *words)
    assert code == 2
    assert told in err
    assert not out
    assert "Traceback" not in err
