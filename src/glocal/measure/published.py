"""Hold the papers' printed parameters and multiply-adds against our own counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import floor
from typing import Any

import torch
from timm.models import is_model
from torch import nn

from glocal import papers
from glocal.errors import GlocalError
from glocal.heads.build import HEADS, put_on
from glocal.measure.cost import cost
from glocal.measure.table import Column, Table
from glocal.papers import Row
from glocal.zoo import create_model

TOLERANCE = 0.02  # multiply-adds: what a counter takes in besides convolutions, linear layers and products differs


@dataclass(frozen=True)
class Comparison:
    """One printed row beside our counts; a verdict is None where the print cannot be met; the row's note says why."""

    row: Row
    params_m: float
    gmacs: float
    """Counted only where the paper prints it."""
    params_agree: bool | None
    gmacs_agree: bool | None


def buildable(row: Row) -> bool:
    """Tell whether we can build the row's model, and it prints parameters or multiply-adds."""
    if (row.params_m or row.gmacs) is None or not is_model(row.model):
        return False
    # UperNet's decoder comes with an extra.
    return row.head in ("", *HEADS) and (row.head != "upernet" or find_spec("segmentation_models_pytorch") is not None)


def compare(row: Row) -> Comparison:
    """Count the row's model and judge each printed figure the way its `check` says."""
    params, gmacs = _counts(row)
    return Comparison(row, params, gmacs, _params_agree(row, params), _gmacs_agree(row, gmacs))


def compare_all(rows: Iterable[Row] | None = None) -> Iterator[Comparison]:
    """Compare every row that we can build."""
    for row in papers.rows() if rows is None else rows:
        if buildable(row):
            yield compare(row)


COLUMNS = (
    Column("source", "table"),
    Column("row", "row"),
    Column("model", "glocal model"),
    Column("paper_params", "paper: params (M)"),
    Column("params", "ours", ".3f"),
    Column("params_verdict", "agrees"),
    Column("paper_gmacs", "paper: GMACs"),
    Column("gmacs", "ours", ".3f"),
    Column("gmacs_verdict", "agrees"),
    Column("note", "note"),
)


def papers_table(rows: Iterable[Row] | None = None) -> Table:
    """Set every row that we can build beside its paper's figures."""
    remarks: dict[str, str] = {}
    found = [_line(each, remarks) for each in compare_all(rows)]
    if not found:
        raise GlocalError("that table prints no parameters or multiply-adds of a model that glocal can build.")
    missed = [line for line in found if "no" in (line.get("params_verdict"), line.get("gmacs_verdict"))]
    notes = (
        f"{len(found)} rows, {len(missed)} of them off. Parameters are held to the printed digits, multiply-adds to "
        f"{TOLERANCE:.0%} beyond them; 'increase' compares the difference to the plain host; "
        "'-' marks a print that cannot be met.",
        *(f"[{mark}] {remark}" for remark, mark in remarks.items()),
    )
    return Table(COLUMNS, found, notes=notes)


def _line(each: Comparison, remarks: dict[str, str]) -> dict[str, Any]:
    row = each.row
    line: dict[str, Any] = {"source": row.source, "row": row.row, "model": row.model}
    if row.params_m is not None:
        verdict = _verdict(each.params_agree, row.params_check)
        printed = f"{row.params_m:.{row.params_digits}f}"
        line |= {"paper_params": printed, "params": each.params_m, "params_verdict": verdict}
    if row.gmacs is not None:
        verdict = _verdict(each.gmacs_agree, row.gmacs_check)
        printed = f"{row.gmacs:.{row.gmacs_digits}f}"
        line |= {"paper_gmacs": printed, "gmacs": each.gmacs, "gmacs_verdict": verdict}
    if row.note:
        line["note"] = f"[{remarks.setdefault(row.note, str(len(remarks) + 1))}]"
    return line


def _verdict(agrees: bool | None, check: str) -> str:
    if agrees is None:
        return "-"
    return {"exact": "yes"}.get(check, check) if agrees else "no"


def _params_agree(row: Row, ours: float) -> bool | None:
    if row.params_m is None or row.params_check == "no":
        return None
    unit = 10.0**-row.params_digits
    if row.params_check == "increase":
        base = _base(row)
        return abs((ours - _counts(base)[0]) - (row.params_m - _printed(base.params_m))) <= unit
    if row.params_check == "cut":
        return abs(floor(ours / unit + 1e-9) * unit - row.params_m) < unit / 2
    return abs(ours - row.params_m) <= unit / 2 + 1e-9


def _gmacs_agree(row: Row, ours: float) -> bool | None:
    if row.gmacs is None or row.gmacs_check == "no":
        return None
    unit = 10.0**-row.gmacs_digits
    if row.gmacs_check == "increase":
        base = _base(row)
        return abs((ours - _counts(base)[1]) - (row.gmacs - _printed(base.gmacs))) <= unit
    return abs(ours - row.gmacs) <= unit / 2 + TOLERANCE * row.gmacs


def _base(row: Row) -> Row:
    return next(each for each in papers.table(row.paper, row.table) if each.row == row.base)


def _printed(figure: float | None) -> float:
    assert figure is not None
    return figure


def _counts(row: Row) -> tuple[float, float]:
    arguments = json.dumps(row.arguments, sort_keys=True)
    return _count(row.model, row.head, arguments, row.size, row.counted, row.gmacs is not None)


@cache
def _count(name: str, head: str, arguments: str, size: int, counted: str, timed: bool) -> tuple[float, float]:
    given: dict[str, Any] = json.loads(arguments)
    classes = given.pop("num_classes", 1000)
    with torch.device("meta"):
        model = create_model(name, num_classes=0 if head else classes, **given)
        model = put_on(model, head, classes) if head else model
    kept = [each for each in model.parameters() if counted != "trainable" or each.requires_grad]
    params = sum(each.numel() for each in kept) - (_head(model) if counted == "headless" else 0)
    return params / 1e6, cost(model, size).gmacs if timed else 0.0


def _head(model: nn.Module) -> int:
    classifier: Any = getattr(model, "get_classifier", None)
    return sum(each.numel() for each in classifier().parameters())
