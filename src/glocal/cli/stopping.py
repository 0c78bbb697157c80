"""Exit codes of a run that was asked to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def exits_as_told() -> Iterator[None]:
    """Leave with 130 after SIGINT and 143 after SIGTERM, once everything is saved."""
    from glocal.train.signals import Interrupted

    try:
        yield
    except Interrupted as stop:
        typer.echo(f"glocal: {stop}", err=True)
        raise typer.Exit(stop.code) from None
