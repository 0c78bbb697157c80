"""The papers' tables as printed: one CSV per table, and what of it a count of our own can be held against."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from glocal.errors import GlocalError, nearest

PAPERS = {
    "life": "LIFE",
    "localvit": "LocalViT",
    "lit": "LIT",
    "cb": "Context Broadcasting",
}
_TEXT = (
    "paper",
    "row",
    "task",
    "head",
    "model",
    "host",
    "mechanisms",
    "counted",
    "params_check",
    "gmacs_check",
    "base",
)
_OTHER = ("table", "arguments", "size", "params_m", "gmacs", "note")


@dataclass(frozen=True)
class Row:
    """One row of one published table.

    `params_check` and `gmacs_check` say how our count compares: `exact` within the printed rounding, `cut` when the
    paper cuts digits instead, `increase` over the row named `base`, `no` when the print cannot be met; `note` says why.
    """

    paper: str
    table: int
    row: str
    task: str
    head: str
    model: str
    """The name that glocal builds it by."""
    host: str
    mechanisms: str
    """As `glocal.named` reads them; empty for the plain host."""
    size: int
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    params_m: float | None = None
    gmacs: float | None = None
    params_digits: int = 0
    """Decimals the paper prints."""
    gmacs_digits: int = 0
    counted: str = ""
    """Which parameters the paper counts: all, or `trainable`, or `headless`."""
    params_check: str = ""
    gmacs_check: str = ""
    base: str = ""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Accuracies and the like, as printed."""
    note: str = ""

    @property
    def source(self) -> str:
        """Where it stands, such as `LIFE Table 1`."""
        return f"{PAPERS[self.paper]} Table {self.table}"

    def __str__(self) -> str:
        return f"{self.paper}-{self.table}-{self.row}"


def tables() -> list[tuple[str, int]]:
    """List the tables there are as (paper, number)."""
    names = [each.name for each in files(__name__).iterdir() if each.name.endswith(".csv")]
    split = [name.removesuffix(".csv").split("_table") for name in names]
    return sorted(
        ((paper, int(number)) for paper, number in split), key=lambda each: (list(PAPERS).index(each[0]), each[1])
    )


@cache
def table(paper: str, number: int) -> tuple[Row, ...]:
    """Read one table, rows in the paper's order."""
    if paper not in PAPERS:
        raise GlocalError(f"unknown paper {paper!r}.{nearest(paper, PAPERS)} There are: {', '.join(PAPERS)}.")
    source = files(__name__) / f"{paper}_table{number}.csv"
    if not source.is_file():
        known = ", ".join(str(n) for p, n in tables() if p == paper)
        raise GlocalError(f"{PAPERS[paper]} has no Table {number} here. There are: {known}.")
    return tuple(_row(record) for record in csv.DictReader(source.read_text(encoding="utf-8").splitlines()))


def rows() -> Iterator[Row]:
    """Yield every row of every table."""
    for paper, number in tables():
        yield from table(paper, number)


def select(paper: str | None = None, number: int | None = None) -> list[Row]:
    """Give the rows of one table, of one paper, or of all."""
    if paper is None:
        if number is not None:
            raise GlocalError(f"Table {number} of which paper? There are: {', '.join(PAPERS)}.")
        return list(rows())
    if number is not None:
        return list(table(paper, number))
    if paper not in PAPERS:
        raise GlocalError(f"unknown paper {paper!r}.{nearest(paper, PAPERS)} There are: {', '.join(PAPERS)}.")
    return [row for row in rows() if row.paper == paper]


def find(
    host: str, mechanisms: str = "", *, size: int | tuple[int, int] | None = None, num_classes: int | None = None
) -> Row | None:
    """Find the published row of a classifier, the most precise one where several tables print it."""
    matches = find_all(host, mechanisms, size=size, num_classes=num_classes)
    return max(matches, key=_precision, default=None)


def find_all(
    host: str, mechanisms: str = "", *, size: int | tuple[int, int] | None = None, num_classes: int | None = None
) -> list[Row]:
    """Find all published rows of a classifier that name parameters or multiply-adds."""
    return [row for row in rows() if _same(row, host, mechanisms, size, num_classes)]


def _same(row: Row, host: str, mechanisms: str, size: int | tuple[int, int] | None, num_classes: int | None) -> bool:
    if row.task != "classify" or (row.params_m is None and row.gmacs is None):
        return False
    by_name = host == row.model and not mechanisms
    if not by_name and (host, mechanisms) != (row.host, row.mechanisms):
        return False
    rest = {key: value for key, value in row.arguments.items() if key != "num_classes"}
    pixels = (size, size) if isinstance(size, int) else size
    return (
        (by_name or not rest)
        and pixels in (None, (row.size, row.size))
        and num_classes in (None, row.arguments.get("num_classes", 1000))
    )


def _precision(row: Row) -> tuple[bool, int, int]:
    trusted = "no" not in (row.params_check, row.gmacs_check)
    return trusted, (row.params_m is not None) + (row.gmacs is not None), row.params_digits + row.gmacs_digits


def _row(record: dict[str, str]) -> Row:
    params, gmacs = record["params_m"], record["gmacs"]
    return Row(
        **{key: record[key] for key in _TEXT},
        table=int(record["table"]),
        arguments=json.loads(record["arguments"] or "{}"),
        size=int(record["size"]),
        params_m=float(params) if params else None,
        gmacs=float(gmacs) if gmacs else None,
        params_digits=_decimals(params),
        gmacs_digits=_decimals(gmacs),
        metrics={k: float(v) for k, v in record.items() if k not in (*_TEXT, *_OTHER) and v},
        note=record["note"],
    )


def _decimals(printed: str) -> int:
    return len(printed.partition(".")[2])
