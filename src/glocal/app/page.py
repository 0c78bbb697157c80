"""The page itself, in gradio: two models, one image, maps that answer to a click."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # the page works offline and calls nobody

import gradio as gr
from PIL import Image

from glocal.app.desk import METHODS, Desk, Panel, Question
from glocal.errors import GlocalError
from glocal.explain.rollout import FUSIONS

_WELCOME = "Choose a model, drop an image, press **Look**. Then click a picture: that patch looks."
_MAY_NAME = "Models are those served, or timm's names, with variants after a plus: `deit_tiny_patch16_224+life`."
_LAST, _ALL = "last", "all"
_CSS = "#message {min-height: 2em} .gradio-container {max-width: 1100px !important; margin: auto}"


def build(desk: Desk) -> gr.Blocks:
    """Lay the page out and tie it to a desk."""
    with gr.Blocks(title="glocal", analytics_enabled=False) as page:
        gr.Markdown(f"# glocal: what does the model look at?\n{_MAY_NAME if desk.names else ''}")
        with gr.Row():
            models = [_model(desk, "Model", 0), _model(desk, "Compare with (optional)", 1)]
        with gr.Row():
            file = gr.File(label="Image", type="filepath", elem_id="image", height=130)
            with gr.Column():
                method = gr.Radio(list(METHODS), value="rollout", label="Method", elem_id="method")
                with gr.Row():
                    layer = gr.Dropdown(_choices(desk, models[0].value), value=_LAST, label="Layer", elem_id="layer")
                    head = gr.Textbox(_ALL, label="Head", elem_id="head")
                    fusion = gr.Dropdown(list(FUSIONS), value="mean", label="Heads fused by", elem_id="fusion")
        with gr.Row():
            go = gr.Button("Look", variant="primary", elem_id="look")
            again = gr.Button("Let the class token look", elem_id="class-token")
        message = gr.Markdown(_WELCOME, elem_id="message")
        with gr.Row():
            shown = [_answer(i) for i in range(2)]
        place = gr.State(None)
        inputs = [*models, file, method, layer, head, fusion, place]
        outputs = [message, *(part for each in shown for part in each)]
        asks = [go.click, method.change, layer.change, fusion.change, head.submit]
        for ask in asks:
            ask(_look(desk), inputs, outputs, show_progress="minimal", concurrency_limit=1)
        for forget in (again.click, file.upload):
            forget(lambda: None, None, place).then(_look(desk), inputs, outputs, concurrency_limit=1)
        models[0].change(_layers(desk), models[0], layer, show_progress="hidden")
        for each in shown:
            each[0].select(_click, each[0], place).then(_look(desk), inputs, outputs, concurrency_limit=1)
    return page


def serve(desk: Desk, host: str, port: int | None, *, browse: bool = False) -> gr.Blocks:
    """Start the page and return it once it answers."""
    page = build(desk)
    try:
        page.queue(max_size=32).launch(
            server_name=host,
            server_port=port,
            share=False,
            inbrowser=browse,
            quiet=True,
            prevent_thread_lock=True,
            max_file_size="64mb",
            allowed_paths=[],
            ssr_mode=False,
            footer_links=[],
            enable_monitoring=False,
            theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
            css=_CSS,
        )
    except OSError as error:
        raise GlocalError(f"the page cannot be served at {host}:{port} ({error}). Try another --port.") from None
    return page


def _model(desk: Desk, label: str, number: int) -> gr.Dropdown:
    choices = list(desk.served)
    value = choices[number] if len(choices) > number else None
    return gr.Dropdown(choices, value=value, label=label, allow_custom_value=desk.names, elem_id=f"model-{number + 1}")


def _answer(number: int) -> tuple[gr.Image, gr.Label, gr.Markdown]:
    with gr.Column(min_width=300):
        picture = gr.Image(
            label=f"Model {number + 1}",
            type="pil",
            format="png",
            interactive=False,
            buttons=["download"],
            elem_id=f"map-{number + 1}",
        )
        prediction = gr.Label(label="Prediction", num_top_classes=5, elem_id=f"prediction-{number + 1}")
        told = gr.Markdown("", elem_id=f"cost-{number + 1}")
    return picture, prediction, told


def _look(desk: Desk) -> Callable[..., list[Any]]:
    def look(
        first: str | None,
        second: str | None,
        file: str | None,
        method: str,
        layer: str,
        head: str,
        fusion: str,
        place: Any,
    ) -> list[Any]:
        nothing = [None, None, ""] * 2
        if not file:
            return [_WELCOME, *nothing]
        try:
            chosen = [first or "", second or ""]
            question = Question(
                chosen, Path(file), method, _number(layer, _LAST, "layer"), _number(head, _ALL, "head"), fusion, place
            )
            panels = desk.answer(question)
        except GlocalError as error:
            return [f"**Sorry:** {_plain(str(error))}", *nothing]
        except (RuntimeError, MemoryError) as error:  # a model that the machine cannot hold, say
            return [f"**Sorry:** the model failed: {_plain(str(error).splitlines()[0])}", *nothing]
        empty = [None, None, ""] * (2 - len(panels))
        return [_told(method, place), *(part for panel in panels for part in _parts(panel)), *empty]

    return look


def _parts(panel: Panel) -> list[Any]:
    return [panel.picture, panel.predictions or None, f"**{_plain(panel.title)}**, {panel.cost}"]


def _told(method: str, place: tuple[float, float] | None) -> str:
    who = (
        "the class token (or the mean token)"
        if place is None
        else f"the patch at {place[0]:.0%} down, {place[1]:.0%} across"
    )
    return f"{method}: what **{who}** looks at. Brighter is more; both pictures have one scale."


def _click(shown: Image.Image, event: gr.SelectData) -> tuple[float, float]:
    across, down = event.index  # in pixels of the picture
    return min(max(down / shown.height, 0.0), 1.0), min(max(across / shown.width, 0.0), 1.0)


def _layers(desk: Desk) -> Callable[[str | None], Any]:
    return lambda name: gr.update(choices=_choices(desk, name), value=_LAST)


def _choices(desk: Desk, name: Any) -> list[str]:
    try:
        count = desk.layers(name) if name else 0
    except GlocalError:
        count = 0  # the message comes with the next look
    return [_LAST, *map(str, range(count))]


def _number(text: str, none: str, name: str) -> int | None:
    text = (text or none).strip()
    if text == none:
        return None
    if not text.isdigit():
        raise GlocalError(f"{name} {text!r} is not understood. Write a number, or {none!r}.")
    return int(text)


def _plain(text: str) -> str:
    """Keep what came from outside from being read as markup."""
    return re.sub(r"([\\`*_\[\]#~|])", r"\\\1", html.escape(text, quote=False))
