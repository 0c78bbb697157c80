"""glocal export: a model as ONNX or torch.export, tried against the original before the file is kept."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class To(StrEnum):
    """The kinds of file."""

    ONNX = "onnx"
    TORCH = "torch-export"


def export(
    model: Annotated[str, typer.Argument(help="A run folder, a file that glocal.save() wrote, or a model's name.")],
    out: Annotated[Path, typer.Argument(help="The file to write, such as model.onnx or model.pt2.")],
    to: Annotated[
        To | None, typer.Option("--to", help="The kind of file; by its ending, .pt2 or .onnx, when not given.")
    ] = None,
    variant: Annotated[str | None, typer.Option("--with", help="Mechanisms to graft onto a named model.")] = None,
    size: Annotated[str | None, typer.Option(help="Image size, N or HxW; the model's own by default.")] = None,
    batch: Annotated[int, typer.Option(help="Images of a call, unless --dynamic.", min=1)] = 1,
    classes: Annotated[int | None, typer.Option(help="Number of classes of a named model.", min=1)] = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Leave the batch open, and the size where it can be.")
    ] = False,
    opset: Annotated[int, typer.Option(help="ONNX opset; DTM needs 19 or later.")] = 20,
) -> None:
    """Write a model to a file that other runtimes read."""
    from glocal.export import export as run
    from glocal.export import open_model
    from glocal.measure.cost import parse_size

    pixels = parse_size(size)
    done = run(
        open_model(model, variant, pixels, classes),
        out,
        to=None if to is None else to.value,
        size=pixels,
        batch=batch,
        dynamic=dynamic,
        opset=opset,
    )
    tried = " and ".join("x".join(map(str, shape)) for shape in done.shapes)
    fixed = {(): "fixed shape", (0,): "any batch"}.get(done.free, "any batch and size")
    typer.echo(
        f"{done.path}: {fixed}; tried at {tried}, largest difference {done.difference:.1e} of the largest output"
    )
