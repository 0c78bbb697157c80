"""How a run leaves: exit codes when it was asked to stop, and no process group left open."""

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
    finally:
        _part()


def _part() -> None:
    """Close the process group: its threads, still running at exit, would now and then abort the process."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
