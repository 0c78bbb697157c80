"""glocal cost: what a mechanism costs, beside what its paper says."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Form(StrEnum):
    """How a table is written."""

    TEXT = "text"
    MD = "md"
    CSV = "csv"
    JSON = "json"


def cost(
    host: Annotated[str, typer.Argument(help="A timm model name, such as deit_tiny_patch16_224.")],
    variants: Annotated[
        list[str] | None,
        typer.Option("--with", help="One variant, such as life, local-ffn+cb or 'life@4-11'; repeat for more."),
    ] = None,
    size: Annotated[str | None, typer.Option(help="Image size, N or HxW; the host's own by default.")] = None,
    classes: Annotated[int, typer.Option(help="Number of classes of the head.", min=1)] = 1000,
    preserve: Annotated[bool, typer.Option("--preserve", help="Count the function-preserving grafts.")] = False,
    form: Annotated[Form, typer.Option("--format", help="How to write the table.")] = Form.TEXT,
) -> None:
    """Set a host beside its enhanced variants: parameters, MACs, activations, and the papers' figures."""
    from glocal.measure.cost import cost_table

    typer.echo(cost_table(host, variants or [], size=size, classes=classes, preserve=preserve).render(form.value))
