"""The web page: the same functions behind buttons, on this machine alone unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from glocal.errors import GlocalError

_HERE = ("127.0.0.1", "localhost", "::1")


def start(
    models: Sequence[str],
    runs: Path | None,
    host: str,
    port: int | None,
    pretrained: bool,
    browse: bool,
    say: Callable[[str], Any],
    *,
    wait: bool = True,
) -> Any:
    """Serve the page until it is stopped; visitors from elsewhere see the models that are served and no others."""
    try:
        import gradio
    except ImportError:
        raise GlocalError("the page needs gradio, which is not installed. pip install 'glocal[app]'.") from None
    from glocal.app.desk import Desk, served
    from glocal.app.page import serve

    offered = served(models, runs)
    own = host in _HERE
    if not offered and not own:
        raise GlocalError("nothing is served: name models, or a folder of runs with --runs.")
    desk = Desk(offered, names=own, pretrained=pretrained)
    for name in offered:
        desk.open(name)  # a model that is not there should be known before the page is
    page = serve(desk, host, port, browse=browse)
    say(f"{page.local_url}  (stop with Ctrl+C)")
    if wait:
        page.block_thread()
    return page
