from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glocal import GlocalError
from glocal.cli import app
from glocal.hosts import ADAPTERS
from glocal.measure.listing import host_table, mechanism_table, model_table, release_table
from glocal.measure.table import Table
from glocal.mechanisms.names import CONFIGS
from glocal.named_models import NAMED
from glocal.released import RELEASES


def test_models_are_listed_with_host_mechanisms_and_tables() -> None:
    rows = {row["model"]: row for row in model_table().rows}
    assert set(NAMED) < set(rows)
    assert {"pvt_small", "lit_tiny", "t2t_vit_7"} < set(rows)
    life = rows["deit_tiny_patch16_224_life"]
    assert (life["host"], life["mechanisms"], life["tables"]) == ("deit_tiny_patch16_224", "life", "LIFE 1, 2, 3, 5")


@pytest.mark.parametrize("wanted", ["localvit", "localvit*", "LOCALVIT"])
def test_a_filter_keeps_the_lines_that_match(wanted: str) -> None:
    names = [row["model"] for row in model_table(wanted).rows]
    assert "localvit_tiny" in names
    assert "lit_tiny" not in names


def test_a_filter_that_keeps_nothing_says_so() -> None:
    with pytest.raises(GlocalError, match="nothing matches 'resnet99'"):
        model_table("resnet99")


def test_every_host_family_is_listed_with_what_it_takes() -> None:
    rows = {row["host"]: row["takes"] for row in host_table().rows}
    assert len(rows) >= len(ADAPTERS)
    assert "life" in rows["VisionTransformer"]
    assert "life" not in rows["MlpMixer"]
    assert "dtm" in rows["SwinTransformer"]


def test_every_mechanism_is_listed_with_its_options() -> None:
    rows = {row["mechanism"]: row for row in mechanism_table().rows}
    assert set(rows) == {name.replace("_", "-") for name in CONFIGS}
    assert "kernels=(1, 3, 5)" in rows["life"]["options"]


def test_every_release_is_listed_with_the_model_it_becomes() -> None:
    rows = {row["release"]: row for row in release_table().rows}
    assert set(rows) == set(RELEASES)
    assert rows["life_deit_tiny_patch16_224"]["mechanisms"] == "life(aux_key=first)"
    assert rows["localvit_tiny_mlp4_act3_r4"]["mechanisms"] == "local-ffn(reduction=4)"


@pytest.mark.parametrize(("page", "table"), [("models", model_table), ("releases", release_table)])
def test_the_reference_shows_the_table_as_it_is(page: str, table: Callable[[], Table]) -> None:
    shown = (Path(__file__).parents[2] / "docs" / "reference" / f"{page}.md").read_text()
    assert table().render("md") in shown, f"paste `glocal list {page} --format md` into docs/reference/{page}.md"


def test_list_writes_json() -> None:
    done = CliRunner().invoke(app, ["list", "models", "--filter", "localvit_swin_tiny", "--format", "json"])
    assert done.exit_code == 0, done.output
    assert [row["model"] for row in json.loads(done.output)] == ["localvit_swin_tiny"]


def test_papers_prints_ours_beside_theirs() -> None:
    done = CliRunner().invoke(app, ["papers", "cb", "--table", "1", "--format", "json"])
    assert done.exit_code == 0, done.output
    first = json.loads(done.output)[0]
    assert (first["paper_params"], round(first["params"], 3), first["params_verdict"]) == ("22", 22.051, "yes")


def test_papers_says_when_a_table_has_nothing_to_count() -> None:
    done = CliRunner().invoke(app, ["papers", "life", "--table", "4"])
    assert isinstance(done.exception, GlocalError)
