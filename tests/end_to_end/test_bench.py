"""`glocal bench` and `glocal export` as a person runs them, on small images."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from glocal import export
from glocal.cli import app
from glocal.errors import GlocalError
from glocal.measure.speed_table import draw
from glocal.measure.table import Table

runner = CliRunner()
HOST = "deit_tiny_patch16_224"


def test_bench_sets_a_host_beside_its_variants_and_the_paper(tmp_path: Path) -> None:
    plot = tmp_path / "times.png"
    options = [
        "--size",
        "224",
        "--size",
        "48",
        "--rounds",
        "2",
        "--device",
        "cpu",
        "--format",
        "csv",
        "--plot",
        str(plot),
    ]
    done = runner.invoke(app, ["bench", HOST, "--with", "life", "--with", "cb", *options])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["model"] for row in rows] == [HOST, "+ life", "+ cb"] * 2
    assert all(float(row["ms"]) > 0 for row in rows)
    assert float(rows[0]["ratio"]) == 1
    assert float(rows[1]["paper_ratio"]) == pytest.approx(22.76 / 12.47)  # LIFE, Table 5, CPU
    assert not rows[4]["paper_ratio"]  # the paper timed 224 pixels
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bench_times_training_steps_and_another_packages_module() -> None:
    options = ["--train", "--size", "32", "--rounds", "2", "--device", "cpu", "--against", f"{__name__}:third_party"]
    done = runner.invoke(app, ["bench", HOST, *options])
    assert done.exit_code == 0, done.output
    assert "eager step" in done.stdout
    assert "third_party" in done.stdout


def test_bench_times_another_model_by_its_name() -> None:
    options = ["--size", "32", "--rounds", "2", "--device", "cpu", "--format", "csv", "--against", "pvt_v2_b0"]
    done = runner.invoke(app, ["bench", HOST, *options])
    assert done.exit_code == 0, done.output
    assert [row["model"] for row in csv.DictReader(io.StringIO(done.stdout))] == [HOST, "pvt_v2_b0"]


def test_bench_times_folded_models_beside_eager_ones() -> None:
    options = [
        "--mode",
        "eager",
        "--mode",
        "folded",
        "--size",
        "32",
        "--rounds",
        "2",
        "--device",
        "cpu",
        "--format",
        "csv",
    ]
    done = runner.invoke(app, ["bench", HOST, "--with", "local-ffn", *options])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["mode"] for row in rows] == ["eager", "eager", "folded", "folded"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--plot", "times.xyz"], "cannot draw to times.xyz"),
        (["--plot", "/proc/none/times.png"], "cannot draw to /proc/none/times.png"),
        (["--against", "math:pi"], "cannot build 'math:pi'"),
        (["--against", "torch.nn:Linear"], "cannot build 'torch.nn:Linear': TypeError"),
        (["--against", "lit_smal"], "Did you mean 'lit_small'"),
        (["--train", "--mode", "folded"], "training steps run eager or compiled"),
        (["--train", "--graphs", "--mode", "compiled"], "training steps run eager or compiled"),
        (["--device", "cuda:1"], "use cpu or cuda"),
        (["--graphs"], "Leave --graphs out"),
        (["--threads", "99999"], "99999 threads were asked for"),
        (["--against", "sys:exit"], "cannot build 'sys:exit': SystemExit"),
        (["--against", "hf-hub:"], "hf-hub: cannot be opened"),
        (["--against", "local-dir:/none"], "local-dir:/none cannot be opened"),
        (["--against", f"{__name__}:Failing"], "Failing fails in float32, eager inference, on images of 1x3x32x32"),
        (["--against", f"{__name__}:third_party", "--size", "8"], "image height 8 is not a multiple"),
        (["--against", "torch.nn:Flatten", "--train"], "torch.nn:Flatten fails in float32, eager step"),
        (["--size", "99999984"], "does not fit into memory"),
    ],
)
def test_bench_refuses_what_it_cannot_do_before_it_begins(options: list[str], told: str) -> None:
    begun = ["--device", "cpu"] if "--device" not in options else []
    done = runner.invoke(app, ["bench", HOST, "--size", "32", *begun, "--rounds", "2", *options])
    assert isinstance(done.exception, GlocalError)
    assert told in str(done.exception)
    assert not done.stdout


def test_a_refused_bench_leaves_no_folder_for_its_picture(tmp_path: Path) -> None:
    done = runner.invoke(app, ["bench", HOST, "--with", "lief", "--plot", str(tmp_path / "new" / "deep" / "times.png")])
    assert isinstance(done.exception, GlocalError)
    assert not list(tmp_path.iterdir())
    row = {"model": "a", "mode": "eager", "batch": 1, "size": "8x8", "ms": 2.0, "low": 1.0, "high": 3.0, "ratio": 1.0}
    assert draw(Table((), [row]), tmp_path / "new" / "times.svg").read_bytes().startswith(b"<?xml")


class Failing(torch.nn.Module):
    """Takes no image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")


def third_party() -> object:
    from torch import nn

    return nn.Sequential(nn.Conv2d(3, 4, 16, 16), nn.Flatten(), nn.LazyLinear(1000))


def test_export_writes_a_named_model_and_says_how_it_was_tried(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    arguments = ["export", HOST, str(file), "--with", "cb", "--to", "torch-export", "--size", "32", "--classes", "3"]
    done = runner.invoke(app, [*arguments, "--dynamic"])
    assert done.exit_code == 0, done.output
    assert file.is_file()
    assert "any batch; tried at 2x3x32x32 and 3x3x32x32" in done.stdout


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        ("", [], "is a folder. Name the file to write"),
        ("file/model.onnx", [], "cannot make the folder"),
        ("new/deep/model.onnx", ["--opset", "99"], "opset 99 is newer than the onnx here knows"),
        ("new/model.tflite", [], "End it in .onnx, or in .pt2"),
        ("new/model", [], "End it in .onnx, or in .pt2"),
        ("new/model.onnx", ["--opset", "12"], "opset 12 is older than PyTorch writes"),
    ],
)
def test_export_refuses_and_leaves_nothing(file: str, options: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    arguments = ["export", HOST, str(tmp_path / file), "--size", "32", "--classes", "3", *options]
    done = runner.invoke(app, arguments)
    assert isinstance(done.exception, GlocalError), done.exception
    assert told in str(done.exception)
    assert [each.name for each in tmp_path.rglob("*")] == ["file"]


def test_export_takes_the_kind_from_the_ending_and_a_name_with_a_tag(tmp_path: Path) -> None:
    file = tmp_path / "model.pt2"
    arguments = ["export", "vit_tiny_patch16_224.augreg_in21k", str(file), "--size", "32", "--classes", "3"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.exception
    program = torch.export.load(file)
    assert program.module()(torch.randn(1, 3, 32, 32)).shape == (1, 3)


class Sometimes(torch.nn.Module):
    """Gives a number at one place and none at another."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"fine": x.mean((1, 2, 3)), "lost": (x.mean() - 1e9).sqrt().expand(x.shape[0])}


def test_numbers_that_are_none_are_not_kept(tmp_path: Path) -> None:
    module = Sometimes()
    module.in_chans = 3  # pyright: ignore
    with pytest.raises(GlocalError, match="largest difference is nan"):
        export(module, tmp_path / "model.pt2", size=8, dynamic=True)
    assert not list(tmp_path.iterdir())
