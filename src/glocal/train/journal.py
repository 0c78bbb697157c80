"""The log of a run: one JSON object per line, cut back to the checkpoint when a run resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glocal.errors import GlocalError
from glocal.train.checkpoint import write_bytes


class Journal:
    """Appends to log.jsonl; a process that is not the main one keeps none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def cut(self, step: int) -> None:
        """Forget lines of steps that will be taken again."""
        if self.path is None or not self.path.exists():
            return
        lines = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
        write_bytes(self.path, "".join(f"{line}\n" for line in lines).encode())

    def clear(self) -> None:
        """Forget a run that left no checkpoint: its steps will all be taken again."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def add(self, **values: Any) -> None:
        """Append one line."""
        if self.path is None:
            return
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise GlocalError(f"{self.path} cannot be written: {error.strerror}. Checkpoints are intact.") from None


def read(path: Path) -> list[dict[str, Any]]:
    """Read a log back."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line cut short by a kill
