"""glocal eval: how well a trained model does."""

from __future__ import annotations

from typing import Annotated

import typer

from glocal.cli.cost import Form


def eval_(
    model: Annotated[str, typer.Argument(help="A run folder, or a file that glocal.save() wrote.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images to evaluate on, all of them or their val part; the run's own validation part by default."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 128,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also show each class.")] = False,
    spoilt: Annotated[
        int, typer.Option(help="Segmenters: also measure images with noise and blur, in so many runs.", min=0)
    ] = 0,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Evaluate a trained model: top-1, top-5, loss; AP, mAP, F1; mIoU; and each class if asked."""
    from glocal.errors import GlocalError
    from glocal.measure.table import Column, Table
    from glocal.recipes.dense_trained import is_dense
    from glocal.recipes.trained import evaluate

    if is_dense(model):
        typer.echo(_dense(model, data, min(batch, 16), per_class, spoilt, form.value))
        return
    if spoilt:
        raise GlocalError(f"{model} is a classifier; spoilt images are measured for segmenters. Leave --spoilt out.")
    figures, classes = evaluate(model, data, batch, lambda note: typer.echo(f"glocal: {note}", err=True))
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


def _dense(model: str, data: str | None, batch: int, per_class: bool, spoilt: int, form: str) -> str:
    from glocal.measure.table import Column, Table
    from glocal.recipes.dense_trained import evaluate_dense, robustness_dense

    if spoilt:
        found = robustness_dense(model, data, spoilt)
        columns = [Column("name", "images"), Column("miou", "mIoU (%)", ".2f"), Column("interval", "±", ".2f")]
        return Table(columns, [{"name": e.name, "miou": e.miou, "interval": e.interval} for e in found]).render(form)
    figures, classes = evaluate_dense(model, data, batch)
    rows = [{"measure": key, "value": value} for key, value in figures.items() if isinstance(value, float)]
    if per_class and "per_class" in figures:
        rows += [{"measure": f"IoU {n}", "value": v} for n, v in zip(classes, figures["per_class"], strict=True)]
    notes = (f"{figures['images']} images",)
    return Table([Column("measure", "measure"), Column("value", "%", ".2f")], rows, notes=notes).render(form)
