"""glocal explain: pictures of what models attend to, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    model: Annotated[str, typer.Argument(help="A timm model's name, a file that glocal.save wrote, or a run folder.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="rollout, gradient, heads, query, entropy, distance, scales, offsets or dense; repeat for more."
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option("--with", help="Also show the model with a variant, such as life; repeat for more."),
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Also show this model, file or run; repeat for more.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for pictures (.png) and arrays (.npz).")
    ] = Path("explained"),
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Load timm's weights for models given by name.")
    ] = False,
    layer: Annotated[int | None, typer.Option(help="Layer of heads; the last one roll-out follows.", min=0)] = None,
    head: Annotated[int | None, typer.Option(help="One head of heads instead of all.", min=0)] = None,
    place: Annotated[
        str | None, typer.Option(help="The place that looks, ROW,COLUMN from 0 to 1, instead of the class token.")
    ] = None,
    fusion: Annotated[str, typer.Option(help="How roll-out fuses heads: mean, max or min.")] = "mean",
    discard: Annotated[float, typer.Option(help="Share of the smallest weights that roll-out drops.")] = 0.0,
    threshold: Annotated[float, typer.Option(help="Share of the highest weight below which heads stay dark.")] = 0.0,
    target: Annotated[int | None, typer.Option(help="Class of gradient; the predicted one by default.", min=0)] = None,
    labels: Annotated[Path | None, typer.Option(help="Label map for dense: a grey or palette PNG.")] = None,
    box: Annotated[
        list[str] | None, typer.Option(help="Box for dense, NAME:LEFT,TOP,RIGHT,BOTTOM in pixels; repeat for more.")
    ] = None,
) -> None:
    """Show what models attend to: maps over the image, by head and by layer, on one scale for all of them."""
    from glocal.explain.asked import ask_for, open_pictures
    from glocal.explain.show import show
    from glocal.explain.subject import subjects
    from glocal.recipes.reopen import reopen

    ask = ask_for(fusion, discard, layer, head, place, threshold, target, labels, box or [])
    pictures = open_pictures(images)
    opened = subjects(model, variants, compare, pretrained=pretrained, reopen=reopen)
    for each in method or ["rollout"]:
        for path in show(each, opened, pictures, ask, output):
            typer.echo(path)
