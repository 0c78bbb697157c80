"""What `glocal eval` shows: one table for each thing that can be asked of a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from glocal.data.questions import KINDS
from glocal.errors import GlocalError
from glocal.measure.spoil import HiddenCentre, Spoil, step
from glocal.measure.table import Column, Table
from glocal.recipes.answer_trained import evaluate_answers
from glocal.recipes.dense_trained import evaluate_dense, robustness_dense
from glocal.recipes.evaluate import evaluate, evaluate_real, evaluate_spoilt
from glocal.recipes.exam import Tell
from glocal.recipes.trained import Trained

_FIGURES = (
    Column("images", "images"),
    Column("top1", "top-1 (%)", ".2f"),
    Column("top5", "top-5 (%)", ".2f"),
    Column("loss", "loss", ".4f"),
    Column("among"),  # the number of classes that answers are sought among
)


def plain(trained: Trained, data: str | None, batch: int, per_class: bool, all_classes: bool, tell: Tell) -> Table:
    """Show accuracy and loss, and each class if asked."""
    figures, classes = evaluate(trained, data, batch, tell, all_classes=all_classes)
    rows = [{"class": "all", "among": len(classes), **figures}]
    if per_class:
        counts = [sum(row) for row in figures["confusion"]]
        rows += [
            {"class": name, "images": count, "top1": right}
            for name, count, right in zip(classes, counts, figures["per_class"], strict=True)
        ]
    return Table([Column("class", "class"), *_FIGURES], rows)


def real(trained: Trained, data: str | None, labels: str, batch: int, tell: Tell) -> Table:
    """Show accuracy by ImageNet's reassessed labels."""
    figures = evaluate_real(trained, data, labels, batch, tell)
    row = {"class": "all", "among": len(trained.classes), **figures}
    return Table([Column("class", "class"), *_FIGURES], [row])


def spoilt(
    trained: Trained, data: str | None, batch: int, ways: Sequence[Spoil], all_classes: bool, tell: Tell
) -> Table:
    """Show accuracy on whole images and on the same images spoilt."""
    found, classes = evaluate_spoilt(trained, data, batch, ways, tell, all_classes=all_classes)
    rows = [{"name": name, "among": len(classes), **figures} for name, figures in found.items()]
    number, *others = _FIGURES
    return Table([Column("name", "images"), Column(number.key, "number"), *others], rows)


def ways(shares: Sequence[float] | None, fill: Literal["black", "mean"], epsilons: Sequence[str] | None) -> list[Spoil]:
    """List how a classifier's images are spoilt: the middle hidden, then steps against the model."""
    hidden: list[Spoil] = [HiddenCentre(share, fill) for share in shares or (0.5,)]
    steps: list[Spoil] = [step(each) for each in epsilons or ("1/255",)]
    return list({each.name: each for each in hidden + steps}.values())


def dense(model: str, data: str | None, batch: int, per_class: bool, runs: int) -> Table:
    """Show a detector's or a segmenter's figures, or a segmenter's on spoilt images."""
    if runs:
        found = robustness_dense(model, data, runs)
        columns = [Column("name", "images"), Column("miou", "mIoU (%)", ".2f"), Column("interval", "±", ".2f")]
        return Table(columns, [{"name": e.name, "miou": e.miou, "interval": e.interval} for e in found])
    figures, classes = evaluate_dense(model, data, batch)
    rows = [{"measure": key, "value": value} for key, value in figures.items() if isinstance(value, float)]
    if per_class and "per_class" in figures:
        rows += [{"measure": f"IoU {n}", "value": v} for n, v in zip(classes, figures["per_class"], strict=True)]
    notes = (f"{figures['images']} images",)
    return Table([Column("measure", "measure"), Column("value", "%", ".2f")], rows, notes=notes)


def answers(model: str, data: str | None, batch: int) -> Table:
    """Show the accuracy of answers, over all and by kind of question."""
    figures = evaluate_answers(model, data, batch)
    names = {"vqa": "VQA accuracy"} | {key: kind for kind in KINDS if (key := kind.replace("/", "_")) in figures}
    rows = [{"measure": name, "value": figures[key]} for key, name in names.items()]
    notes = (f"{figures['questions']} questions",)
    return Table([Column("measure", "measure"), Column("value", "%", ".2f")], rows, notes=notes)


def refuse_for(does: str, model: str, options: Mapping[str, object]) -> None:
    """Raise where a model that detects, segments or answers is asked what only a classifier tells."""
    if given := [option for option, value in options.items() if value]:
        raise GlocalError(f"{', '.join(given)} are for classifiers; {model} {does}. Leave them out.")


def refuse_together(*, per_class: bool, spoilt: bool, labels: bool, all_classes: bool) -> None:
    """Raise where one thing asked rules another out."""
    if labels and (per_class or spoilt):
        raise GlocalError(
            "--labels gives an image several labels; --per-class and --spoilt need one. Ask for these separately."
        )
    if labels and all_classes:
        raise GlocalError("--labels are of all classes already; leave --all-classes out.")
    if per_class and spoilt:
        raise GlocalError("--per-class and --spoilt make two tables; ask separately.")
