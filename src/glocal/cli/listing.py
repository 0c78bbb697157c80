"""glocal list: the models, hosts, mechanisms and released checkpoints there are."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from glocal.cli.cost import Form


class What(StrEnum):
    """What to list."""

    MODELS = "models"
    HOSTS = "hosts"
    MECHANISMS = "mechanisms"
    RELEASES = "releases"


def list_(
    what: Annotated[What, typer.Argument(help="What to list.")],
    wanted: Annotated[str, typer.Option("--filter", help="Keep lines with this text; * and ? stand for any.")] = "",
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """List the papers' models by name, the hosts, the mechanisms, or the released checkpoints."""
    from glocal.measure import listing

    tables = {
        What.MODELS: listing.model_table,
        What.HOSTS: listing.host_table,
        What.MECHANISMS: listing.mechanism_table,
        What.RELEASES: listing.release_table,
    }
    typer.echo(tables[what](wanted).render(form.value))
