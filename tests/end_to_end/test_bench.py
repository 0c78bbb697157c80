"""`glocal bench` and `glocal export` as a person runs them, on small images."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glocal.cli import app

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
