"""glocal predict: name what is in an image, draw it, or answer questions about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glocal.cli.cost import Form


def predict(
    model: Annotated[str, typer.Argument(help="A run folder, or a file that glocal.save() wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    question: Annotated[
        list[str] | None,
        typer.Option(help="What to ask about each image, of a run that answers questions; repeat for more."),
    ] = None,
    top: Annotated[int, typer.Option(help="How many classes or answers to show.", min=1)] = 3,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for the pictures that detectors and segmenters draw.")
    ] = Path("predictions"),
    least: Annotated[float, typer.Option(help="Detectors: lowest score shown.", min=0, max=1)] = 0.5,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Tell the most likely classes of images; draw boxes or label maps, or answer questions, as the model can."""
    from glocal.errors import GlocalError
    from glocal.measure.table import Column, Table
    from glocal.recipes.answer_trained import answers_questions, ask
    from glocal.recipes.dense_trained import is_dense, predict_dense
    from glocal.recipes.trained import image_files
    from glocal.recipes.trained import predict as run

    columns = [Column("image", "image"), Column("class", "class"), Column("percent", "%", ".2f")]
    if answers_questions(model):
        rows, broken = ask(model, images, question or [], top)
        columns[1:2] = [Column("question", "question"), Column("answer", "answer")]
    elif question and Path(model).exists():
        raise GlocalError(f"{model} names what is in images and answers no questions. Leave --question out.")
    elif is_dense(model):
        rows, broken = predict_dense(model, list(image_files(images)), out, least)
        columns.append(Column("box", "box"))
        typer.echo(f"drawn: {out}", err=True)
    else:
        rows, broken = run(model, images, top)
    typer.echo(Table(columns, rows).render(form.value))
    for text in broken:
        typer.echo(f"glocal: {text}", err=True)
    if broken:
        raise typer.Exit(2)
