"""glocal convert: a checkpoint, released or of a run, into a file that `glocal.load` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A released checkpoint (LIFE, LocalViT, LIT, T2T-ViT, PVT, TNT, DeiT), or one of a run."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, such as model.safetensors.")],
    name: Annotated[str | None, typer.Option(help="Which release it is, where names and shapes fit two.")] = None,
    classes: Annotated[int | None, typer.Option(help="Keep or make a head of this many classes.", min=1)] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Take the moving average in a run's checkpoint.")] = False,
) -> None:
    """Recognise a checkpoint and write its weights with host and mechanisms."""
    from glocal.errors import GlocalError
    from glocal.released import load_released
    from glocal.store import save
    from glocal.train.unpack import unpack

    step = unpack(source, out, ema=ema, released=bool(name or classes))
    if step is not None:
        typer.echo(f"{out}: step {step}")
        return
    if ema:
        raise GlocalError(f"--ema is for checkpoints of a run; {source} is none.")
    model = load_released(source, name, classes)
    save(model, out)
    params = sum(each.numel() for each in model.parameters())
    typer.echo(f"{out}: {model.glocal.name}, {params / 1e6:.3f} M parameters")  # pyright: ignore
