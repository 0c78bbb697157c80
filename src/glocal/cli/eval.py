"""glocal eval: how well a trained model does."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glocal.cli.cost import Form


class Fill(StrEnum):
    """What the hidden middle is filled with."""

    BLACK = "black"
    MEAN = "mean"


def eval_(
    model: Annotated[
        str,
        typer.Argument(help="A run folder, a saved or released file, or a classifier's name with --pretrained."),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images to evaluate on, all of them or their val part; the run's own validation part by default."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 128,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also show each class.")] = False,
    spoilt: Annotated[
        int,
        typer.Option(
            help="Also measure spoilt images: segmenters noise and blur, in so many runs; classifiers their middle "
            "hidden and one step against the model, where nothing is drawn and one run is enough.",
            min=0,
        ),
    ] = 0,
    hide: Annotated[
        list[float] | None,
        typer.Option(help="Share of each side hidden in the middle, 0.5 by default; repeat for more."),
    ] = None,
    fill: Annotated[Fill, typer.Option(help="What the middle is filled with.")] = Fill.BLACK,
    epsilon: Annotated[
        list[str] | None,
        typer.Option(help="Length of the step, of pixels from 0 to 1; 1/255 by default; repeat for more."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="ImageNet's reassessed labels, real.json; `real` for the copy that comes with timm."),
    ] = None,
    all_classes: Annotated[
        bool, typer.Option("--all-classes", help="Seek answers among all classes where folders are of some only.")
    ] = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Load timm's weights for a model given by name.")
    ] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="Load this file's weights for a model given by name.")] = None,
    crop: Annotated[
        float | None, typer.Option(help="Share of the image's sides that is seen, such as 0.875.", min=0.01, max=1)
    ] = None,
    mean: Annotated[str | None, typer.Option(help="Mean the images are normalised by, such as 0.5.")] = None,
    std: Annotated[str | None, typer.Option(help="Deviation they are normalised by.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Evaluate a trained model: top-1, top-5, loss; AP, mAP, F1; mIoU; VQA accuracy; each class if asked."""
    from glocal.errors import GlocalError
    from glocal.recipes import eval_tables as tables
    from glocal.recipes.answer_trained import answers_questions
    from glocal.recipes.by_name import Look, numbers, open_classifier
    from glocal.recipes.dense_trained import is_dense

    if (hide or epsilon or fill is not Fill.BLACK) and not spoilt:
        raise GlocalError("--hide, --fill and --epsilon say how images are spoilt; give --spoilt 1 too.")
    given = {"--labels": labels, "--all-classes": all_classes, "--pretrained": pretrained, "--crop": crop}
    given |= {"--checkpoint": checkpoint, "--mean": mean, "--std": std, "--hide": hide, "--epsilon": epsilon}
    given |= {"--fill": fill is not Fill.BLACK}
    if is_dense(model):
        tables.refuse_for("detects or segments", model, given)
        typer.echo(tables.dense(model, data, min(batch, 16), per_class, spoilt).render(form.value))
        return
    if answers_questions(model):
        tables.refuse_for("answers questions", model, given | {"--per-class": per_class, "--spoilt": spoilt})
        typer.echo(tables.answers(model, data, min(batch, 32)).render(form.value))
        return
    tables.refuse_together(per_class=per_class, spoilt=bool(spoilt), labels=bool(labels), all_classes=all_classes)
    ways = tables.ways(hide, fill.value, epsilon) if spoilt else ()
    look = Look(numbers(mean, "--mean"), numbers(std, "--std"), crop)
    trained = open_classifier(model, pretrained, checkpoint, look)
    if labels:
        table = tables.real(trained, data, labels, batch, _tell)
    elif spoilt:
        table = tables.spoilt(trained, data, batch, ways, all_classes, _tell)
    else:
        table = tables.plain(trained, data, batch, per_class, all_classes, _tell)
    typer.echo(table.render(form.value))


def _tell(note: str) -> None:
    typer.echo(f"glocal: {note}", err=True)
