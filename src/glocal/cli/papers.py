"""glocal papers: every published row beside our own count."""

from __future__ import annotations

from typing import Annotated

import typer

from glocal.cli.cost import Form


def papers(
    paper: Annotated[str | None, typer.Argument(help="life, localvit, lit or cb; all by default.")] = None,
    table: Annotated[int | None, typer.Option(help="One table of it, by number.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Set the parameters and multiply-adds that the papers print beside those of our models."""
    from glocal.measure.published import papers_table
    from glocal.papers import select

    typer.echo(papers_table(select(paper, table)).render(form.value))
