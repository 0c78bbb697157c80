"""glocal recipes: what can be trained by name, and what to expect of it."""

from __future__ import annotations

from typing import Annotated

import typer

from glocal.cli.cost import Form


def recipes(
    match: Annotated[str, typer.Argument(help="Only names with this in them.")] = "",
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """List the recipes with the papers' results."""
    from glocal.errors import GlocalError
    from glocal.measure.table import Column, Table
    from glocal.recipes.find import listed

    rows = [{"recipe": each.name, "expect": each.head} for each in listed() if match in each.name]
    if not rows:
        raise GlocalError(f"no recipe has {match!r} in its name. `glocal recipes` lists all.")
    if form is Form.TEXT:
        wide = max(len(row["recipe"]) for row in rows)
        typer.echo("\n".join(f"{row['recipe']:<{wide}}  {row['expect']}" for row in rows))
    else:
        typer.echo(Table([Column("recipe", "recipe"), Column("expect", "what to expect")], rows).render(form.value))
