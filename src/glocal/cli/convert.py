"""glocal convert: a released checkpoint into a file that `glocal.load` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of LIFE, LocalViT, LIT, T2T-ViT, PVT, TNT or DeiT.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as model.safetensors.")],
    name: Annotated[str | None, typer.Option(help="Which release it is, where names and shapes fit two.")] = None,
    classes: Annotated[int | None, typer.Option(help="Keep or make a head of this many classes.", min=1)] = None,
) -> None:
    """Recognise a released checkpoint and write it with its host and mechanisms."""
    from glocal.released import load_released
    from glocal.store import save

    model = load_released(source, name, classes)
    save(model, out)
    params = sum(each.numel() for each in model.parameters())
    typer.echo(f"{out}: {model.glocal.name}, {params / 1e6:.3f} M parameters")  # pyright: ignore
