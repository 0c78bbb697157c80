"""One table, four ways to write it: aligned text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

_NUMBER = re.compile(r"[+-]?[\d.,]+%?|-")
Format = Literal["text", "md", "csv", "json"]


@dataclass(frozen=True)
class Column:
    """A key in the rows, the heading above it, and how its numbers are written for people."""

    key: str
    heading: str = ""  # without one, only CSV and JSON have the column
    form: str = ""

    def write(self, value: Any) -> str:
        if value is None:
            return ""
        return format(value, self.form) if self.form and not isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Table:
    """Rows of named values; CSV and JSON keep every digit, text and Markdown are for reading."""

    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    notes: Sequence[str] = ()

    def render(self, form: Format | str = "text") -> str:
        """Write the table."""
        return {"text": self._text, "md": self._markdown, "csv": self._csv, "json": self._json}[form]()

    def _shown(self) -> list[Column]:
        filled = [column for column in self.columns if any(row.get(column.key) is not None for row in self.rows)]
        return [column for column in filled if column.heading]

    def _cells(self) -> list[list[str]]:
        shown = self._shown()
        return [[column.heading for column in shown]] + [[c.write(row.get(c.key)) for c in shown] for row in self.rows]

    def _text(self) -> str:
        cells = self._cells()
        widths, words = [max(map(len, column)) for column in zip(*cells, strict=True)], self._words(cells)
        lines = [
            "  ".join(c.ljust(w) if left else c.rjust(w) for c, w, left in zip(row, widths, words, strict=True))
            for row in cells
        ]
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join(line.rstrip() for line in lines) + "".join(
            f"\n{note}" for note in ("", *self.notes) if self.notes
        )

    def _markdown(self) -> str:
        head, *body = cells = self._cells()
        lines = [head, ["---" if left else "---:" for left in self._words(cells)], *body]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return text + "".join(f"\n\n{note}" for note in self.notes)

    def _words(self, cells: list[list[str]]) -> list[bool]:
        """Tell which columns hold words: they start at the left, numbers end at the right."""
        return [any(cell and not _NUMBER.fullmatch(cell) for cell in column[1:]) for column in zip(*cells, strict=True)]

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(
            out, [column.key for column in self.columns], extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue().rstrip("\n")

    def _json(self) -> str:
        return json.dumps([{column.key: row.get(column.key) for column in self.columns} for row in self.rows], indent=2)
