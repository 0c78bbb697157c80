"""glocal eval: how well a trained model does."""

from __future__ import annotations

from typing import Annotated

import typer

from glocal.cli.cost import Form


def eval_(
    model: Annotated[str, typer.Argument(help="A run folder, or a file that glocal.save() wrote.")],
    data: Annotated[
        str | None, typer.Option(help="Images to evaluate on; the run's own validation part by default.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 128,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also show each class.")] = False,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Evaluate a trained model: top-1, top-5, loss, and each class if asked."""
    from glocal.measure.table import Column, Table
    from glocal.recipes.trained import evaluate

    figures, classes = evaluate(model, data, batch)
    rows = [{"class": "all", "images": figures["images"], **{k: figures[k] for k in ("top1", "top5", "loss")}}]
    if per_class:
        counts = [sum(row) for row in figures["confusion"]]
        rows += [
            {"class": name, "images": count, "top1": right}
            for name, count, right in zip(classes, counts, figures["per_class"], strict=True)
        ]
    columns = [
        Column("class", "class"),
        Column("images", "images"),
        Column("top1", "top-1 (%)", ".2f"),
        Column("top5", "top-5 (%)", ".2f"),
        Column("loss", "loss", ".4f"),
    ]
    typer.echo(Table(columns, rows).render(form.value))
