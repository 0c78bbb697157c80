"""glocal train: one readable file in, one folder out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What decides which checkpoint is best, by task.
MEASURES = {"top1": "top-1", "ap": "AP", "miou": "mIoU", "vqa": "VQA accuracy"}


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (see glocal recipes), a YAML file, or a run folder.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one setting, such as optim.lr=0.001; repeat for more.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the images lie; short for --set data.name or data.root.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder; runs/<recipe> by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the folder's run stopped.")] = False,
) -> None:
    """Train a host with its mechanisms as a recipe says; stop and resume at any time."""
    from glocal.cli.stopping import exits_as_told
    from glocal.recipes.find import find
    from glocal.recipes.run import run
    from glocal.recipes.schema import read, with_data
    from glocal.train.screen import clock

    path = find(recipe)
    settings = read(path, changes or ())
    if data is not None:
        settings = with_data(settings, data)
    begun = path.name == "recipe.yaml" and Path(recipe).is_dir()
    folder = out or (path.parent if begun else Path("runs") / path.stem)
    with exits_as_told():
        outcome = run(settings, folder, resume=resume)
    metrics = outcome.metrics
    if outcome.main:
        told, figure = next((name, key) for key, name in MEASURES.items() if key in metrics)
        typer.echo(
            f"{told} {metrics[figure]:.2f} %, best {metrics['best']:.2f} %, {clock(metrics['seconds'])}: {folder}"
        )
