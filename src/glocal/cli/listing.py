"""glocal list: the models, hosts and mechanisms there are."""

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


def list_(
    what: Annotated[What, typer.Argument(help="What to list.")],
    wanted: Annotated[str, typer.Option("--filter", help="Keep lines with this text; * and ? stand for any.")] = "",
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """List the papers' models by name, the hosts, or the mechanisms."""
    from glocal.measure import listing

    tables = {"models": listing.model_table, "hosts": listing.host_table, "mechanisms": listing.mechanism_table}
    typer.echo(tables[what.value](wanted).render(form.value))
