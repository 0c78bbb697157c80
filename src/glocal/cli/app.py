"""glocal app: look into models on a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def app_(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models to offer: timm names, saved files or run folders.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Offer every finished run in this folder.")] = None,
    host: Annotated[str, typer.Option(help="Address to serve at; others can reach the page at 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Port; the first free one from 7860 by default.", min=1, max=65535)
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Load timm's weights for models given by name.")
    ] = False,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page: load one or two models, drop an image, see their maps side by side, click a patch."""
    from glocal.app import start

    start(models or [], runs, host, port, pretrained, browse, typer.echo)
