"""glocal predict: name what is in an image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glocal.cli.cost import Form


def predict(
    model: Annotated[str, typer.Argument(help="A run folder, or a file that glocal.save() wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    top: Annotated[int, typer.Option(help="How many classes to show.", min=1)] = 3,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Tell the most likely classes of images."""
    from glocal.measure.table import Column, Table
    from glocal.recipes.trained import predict as run

    rows, broken = run(model, images, top)
    columns = [Column("image", "image"), Column("class", "class"), Column("percent", "%", ".2f")]
    typer.echo(Table(columns, rows).render(form.value))
    for text in broken:
        typer.echo(f"glocal: {text}", err=True)
    if broken:
        raise typer.Exit(2)
