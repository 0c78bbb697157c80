"""glocal bench: a host's speed beside its variants', in one interleaved run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glocal.cli.cost import Form


class Mode(StrEnum):
    """How a model runs."""

    EAGER = "eager"
    FOLDED = "folded"
    COMPILED = "compiled"
    OPTIMISED = "optimised"


class Kind(StrEnum):
    """The numbers it computes with."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def bench(
    host: Annotated[str, typer.Argument(help="A model's name, such as deit_tiny_patch16_224.")],
    variants: Annotated[
        list[str] | None, typer.Option("--with", help="One variant, such as life; repeat for more.")
    ] = None,
    modes: Annotated[list[Mode] | None, typer.Option("--mode", help="Eager by default; repeat for more.")] = None,
    batches: Annotated[list[int] | None, typer.Option("--batch", help="1 by default; repeat for more.", min=1)] = None,
    sizes: Annotated[
        list[str] | None, typer.Option("--size", help="N or HxW, 224 by default; repeat for more.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Time training steps instead of inference.")] = False,
    dtype: Annotated[Kind, typer.Option(help="bfloat16 trains under autocast.")] = Kind.FLOAT32,
    device: Annotated[str, typer.Option(help="cpu or cuda; a GPU where there is one by default.")] = "",
    rounds: Annotated[int, typer.Option(help="How often each model is timed.", min=2)] = 20,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves PyTorch's choice.", min=0)] = 0,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="Replay CUDA graphs in compiled and optimised modes.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="Another model to time: its name, or package.module:callable.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the times over image size to this file.")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Time a host and its variants: latency at batch 1, images per second at larger ones."""
    from glocal.measure.speed_table import check_plot, draw, speed_table

    check_plot(plot)
    table = speed_table(
        host, variants or [], modes=[mode.value for mode in modes or [Mode.EAGER]], batches=batches or [1],
        sizes=sizes or ["224"], train=train, dtype=dtype.value, device=device, rounds=rounds, threads=threads,
        graphs=graphs, against=against,
    )  # fmt: skip
    typer.echo(table.render(form.value))
    if plot is not None:
        typer.echo(f"drawn to {draw(table, plot)}", err=True)
