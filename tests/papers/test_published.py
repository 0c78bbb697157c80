"""Every published row that glocal can build: parameters to the printed digits, multiply-adds within two percent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from timm.models import is_model

from glocal import create_model, named, papers, spelled
from glocal.measure.published import buildable, compare
from glocal.named_models import NAMED
from glocal.papers import Row

ROWS = list(papers.rows())
CLASSIFIERS = [row for row in ROWS if row.task == "classify"]
SE_192 = "local-ffn(reduction=192)"
COUNTED = [row for row in CLASSIFIERS if buildable(row)]  # the dense models: test_dense.py


def test_every_classifier_of_every_table_can_be_built_by_name() -> None:
    assert [str(row) for row in CLASSIFIERS if not is_model(row.model)] == []
    assert len(COUNTED) >= 123


@pytest.mark.parametrize("row", COUNTED, ids=str)
def test_counts_agree_with_the_paper(row: Row) -> None:
    found = compare(row)
    assert found.params_agree is not False, f"{found.params_m:.4f} M, printed {row.params_m}"
    assert found.gmacs_agree is not False, f"{found.gmacs:.4f} GMACs, printed {row.gmacs}"


def test_a_row_names_the_same_model_by_host_and_mechanisms() -> None:
    rows = {row.model: row for row in CLASSIFIERS if row.mechanisms and row.mechanisms != SE_192}
    found = {model: (NAMED[model].host, NAMED[model].mechanisms) for model in rows}
    assert found == {model: (row.host, row.mechanisms) for model, row in rows.items()}


def test_se_192_keeps_the_four_channels_that_are_the_default() -> None:
    with torch.device("meta"):
        models = [create_model("deit_tiny_patch16_224", *named(text)) for text in ("local-ffn", SE_192)]
    assert _params(models[0]) == _params(models[1])


def test_the_reference_shows_every_row_that_can_be_counted() -> None:
    shown = (Path(__file__).parents[2] / "docs" / "reference" / "papers.md").read_text()
    missing = [
        str(row) for row in ROWS if buildable(row) and f"| {row.source} | {row.row} | {row.model} |" not in shown
    ]
    assert missing == []
    assert "| no |" not in shown


def test_dense_models_are_compared_by_their_increase() -> None:
    found = compare(papers.table("life", 2)[1])
    assert (found.row.params_check, found.params_agree, found.gmacs_agree) == ("increase", True, True)
    assert all(buildable(row) for number in (2, 3) for row in papers.table("life", number))


def test_a_wrong_figure_would_be_seen() -> None:
    row = papers.table("life", 1)[3]
    assert compare(replace(row, params_m=5.61)).params_agree is False
    assert compare(replace(row, gmacs=1.35)).gmacs_agree is False
    increase = papers.table("life", 1)[9]
    assert compare(replace(increase, params_m=27.92)).params_agree is False
    assert compare(replace(papers.table("lit", 2)[15], params_m=49.0)).params_agree is False


def test_a_row_that_cannot_be_met_says_why() -> None:
    silent = [str(row) for row in ROWS if "no" in (row.params_check, row.gmacs_check) and not row.note]
    assert silent == []


def test_mechanisms_are_spelled_the_way_glocal_spells_them() -> None:
    texts = {row.mechanisms for row in ROWS if row.mechanisms}
    assert {text: spelled(*named(text)) for text in texts} == {text: text for text in texts}


def test_a_base_is_another_row_of_the_same_table() -> None:
    for row in ROWS:
        labels = [other.row for other in papers.table(row.paper, row.table)]
        assert labels.count(row.row) == 1
        assert not row.base or (row.base in labels and row.base != row.row)


def _params(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
