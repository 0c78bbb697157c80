"""glocal compare: which mechanism helps on these images, and at what cost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from glocal.cli.cost import Form


def compare(
    data: Annotated[
        str | None,
        typer.Option(help="A folder with one sub-folder per class, an .npz file, or a known set; digits by default."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="A timm model, such as deit_tiny_patch16_224 or 'vit_tiny_patch16_224(depth=6)'.")
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option("--with", help="One variant, such as life, local-ffn+cb or 'life@4-11'; repeat for more."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each variant.", min=1)] = 3,
    epochs: Annotated[int | None, typer.Option(help="Length of each run.", min=1)] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time for everything, such as 10m: a limit, which sets the epochs.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side the images are brought to.", min=4)] = None,
    patch: Annotated[int | None, typer.Option(help="Side of a patch.", min=1)] = None,
    batch: Annotated[int | None, typer.Option(help="Images per step.", min=2)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of every run.")] = None,
    augment: Annotated[str | None, typer.Option(help="none, shift, light, crop, deit or deit_small.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Start from the host's own weights.")] = False,
    preserve: Annotated[bool, typer.Option("--preserve", help="Graft so that the host's function is kept.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder for runs and report.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted comparison.")] = False,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Train the host and each variant under the same budget and show what helps, and what it costs."""
    began = time.monotonic()
    from glocal.cli.stopping import exits_as_told
    from glocal.compare import report
    from glocal.compare.budget import seconds
    from glocal.compare.plan import plan
    from glocal.compare.run import compare as run
    from glocal.compare.table import table
    from glocal.errors import GlocalError
    from glocal.train.screen import screen

    if budget is not None and epochs is not None:
        raise GlocalError("give --epochs or --budget, not both: one sets the other.")
    allowed = seconds(budget or "10m") if budget is not None or (epochs is None and data is not None) else None
    made, pair = plan(
        data,
        host,
        variants or (),
        seeds=seeds,
        epochs=epochs,
        preserve=preserve,
        pretrained=pretrained,
        size=size,
        patch=patch,
        batch=batch,
        lr=lr,
        augment=augment,
    )
    folder = out or _free(Path("runs"), "compare")
    with exits_as_told():
        result = run(
            made, pair, folder, screen(aside=form is not Form.TEXT), resume=resume, budget=allowed, began=began
        )
    page = report.write(result, folder)
    typer.echo("\n" + table(result, form.value).render(form.value))
    typer.echo(f"\n{page}", err=form is not Form.TEXT)


def _free(parent: Path, name: str) -> Path:
    """Find a folder name that is not taken."""
    number, path = 2, parent / name
    while path.exists():
        path, number = parent / f"{name}-{number}", number + 1
    return path
