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
COUNTED = [row for row in CLASSIFIERS if buildable(row)]  # the dense models: test_dense.py


def test_every_classifier_of_every_table_can_be_built_by_name() -> None:
    assert [str(row) for row in CLASSIFIERS if not is_model(row.model)] == []
    assert len(COUNTED) >= 123


@pytest.mark.parametrize("row", COUNTED, ids=str)
def test_counts_agree_with_the_paper(row: Row) -> None:
    found = compare(row)
    assert found.params_agree is not False, f"{found.params_m:.4f} M, printed {row.params_m}"
    assert found.gmacs_agree is not False, f"{found.gmacs:.4f} GMACs, printed {row.gmacs}"


@pytest.mark.parametrize("row", {row.model: row for row in COUNTED if row.mechanisms}.values(), ids=str)
def test_a_row_names_the_same_model_by_host_and_mechanisms(row: Row) -> None:
    arguments = {key: value for key, value in row.arguments.items() if key != "num_classes"}
    arguments = {**NAMED[row.model].arguments, **arguments}
    with torch.device("meta"):
        by_name = create_model(row.model, **arguments)
        by_hand = create_model(row.host, *named(row.mechanisms), **arguments)
    assert _params(by_name) == _params(by_hand)


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
