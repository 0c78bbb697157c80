"""One HTML file that holds the whole answer and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from glocal.compare import attention, draw
from glocal.compare.run import Comparison, as_json, versions
from glocal.compare.style import STYLE
from glocal.compare.table import COLUMNS, best, rows, summary, table, warnings
from glocal.train import checkpoint
from glocal.train.plain import plain
from glocal.train.screen import clock


def write(comparison: Comparison, folder: Path) -> Path:
    """Write report.html, the table as text, Markdown, CSV and JSON, and every figure as results.json."""
    for form, name in (("text", "table.txt"), ("md", "table.md"), ("csv", "table.csv"), ("json", "table.json")):
        checkpoint.write_bytes(folder / name, (table(comparison, form).render(form) + "\n").encode())
    checkpoint.write_json(folder / "results.json", as_json(comparison))
    path = folder / "report.html"
    checkpoint.write_bytes(path, html(comparison).encode(errors="replace"))  # folders may be named in any bytes
    return path


def html(comparison: Comparison) -> str:
    """Write the page."""
    made = rows(comparison)
    top = best(made)
    names = [row["variant"] for row in made]
    rival = top if top is not made[0] else max(made[1:], key=lambda row: row["top1"], default=made[0])
    recipe = comparison.plan.recipe
    title = f"{recipe.host.name} on {Path(recipe.data.name).name}"
    parts = [
        f"<h1>{escape(title)}</h1><p class=lead>{escape(summary(made))}</p>{_warnings(comparison)}"
        f"{_facts(comparison)}{_host(comparison)}",
        f"<h2>Accuracy and cost</h2>{_table(made, top)}{_explained(comparison)}",
        _two("<h2>Gain over the host</h2>" + _gains(made), "<h2>Accuracy by epoch</h2>" + _curve(comparison, names)),
        _two(
            "<h2>Accuracy of each class</h2>" + _classes(comparison, names, rival["variant"]),
            "<h2>Training loss</h2>" + _losses(comparison, names),
        ),
        f"<h2>What is taken for what</h2>{_confusions(comparison, rival['variant'])}",
        _looks(comparison),
        f"<h2>How this was made</h2>{_origin(comparison)}",
    ]
    return _PAGE.format(
        title=escape(title), style=STYLE, body="".join(f"<section>{part}</section>" for part in parts if part)
    )


def _warnings(comparison: Comparison) -> str:
    return "".join(f"<p class=warning>{escape(text)}</p>" for text in warnings(comparison))


def _facts(comparison: Comparison) -> str:
    recipe = comparison.plan.recipe
    planned, budget = comparison.plan.planned, comparison.budget
    facts = {
        "images": f"{comparison.images[0]:,} + {comparison.images[1]:,}",
        "classes": str(len(comparison.classes)),
        "epochs": str(recipe.epochs) + (f" of {planned}" if planned else ""),
        "seeds": str(len(comparison.plan.seeds)),
        "training": clock(sum(each.metrics["seconds"] for each in comparison.results)),
        "time in all": clock(comparison.seconds) + (f" of {clock(budget)}" if budget else ""),
    }
    return "<dl>" + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items()) + "</dl>"


def _host(comparison: Comparison) -> str:
    host = comparison.plan.recipe.host
    options = ", ".join(f"{key} {value}" for key, value in host.arguments.items())
    start = "its pretrained weights" if host.pretrained else "random weights"
    return f"<p class=small>Host: {escape(host.name)}{escape(f' ({options})' if options else '')}, from {start}.</p>"


def _table(made: Sequence[dict[str, Any]], top: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in COLUMNS)
    body = "".join(
        f"<tr{' class=best' if row is top else ''}>"
        + "".join(f"<td>{escape(column.write(row.get(column.key)))}</td>" for column in COLUMNS)
        + "</tr>"
        for row in made
    )
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def _explained(comparison: Comparison) -> str:
    held = len(comparison.plan.seeds)
    return (
        f"<p class=small>Top-1 is the mean over {held} seeds on the last checkpoint, with its standard deviation; no "
        f"checkpoint was chosen by its score. Gain compares runs of the same seed, with a 95 % interval (Student's t). "
        f"Every run had the same epochs, data order and augmentation. Latency: one image, this machine. Memory: one "
        f"training step.</p>"
    )


def _gains(made: Sequence[dict[str, Any]]) -> str:
    gains = [(r["variant"], r["gain"], r["gain_low"], r["gain_high"], i) for i, r in enumerate(made) if i]
    return draw.intervals(gains, "percentage points of top-1") if gains else "<p>There is only the host.</p>"


def _curve(comparison: Comparison, names: Sequence[str]) -> str:
    return draw.curves([_line(comparison, name, "val_top1") for name in names], "epoch", "top-1 (%)")


def _losses(comparison: Comparison, names: Sequence[str]) -> str:
    return draw.curves([_line(comparison, name, "loss") for name in names], "epoch", "loss")


def _line(comparison: Comparison, name: str, key: str) -> draw.Line:
    steps = max(each["step"] for run in comparison.of(name) for each in run.curve)
    scale = comparison.plan.recipe.epochs / steps
    runs = [{each["step"] * scale: each[key] for each in run.curve if key in each} for run in comparison.of(name)]
    shared = sorted(set.intersection(*(set(run) for run in runs)))
    at = [[run[x] for run in runs] for x in shared]
    return draw.Line(name, shared, [fmean(v) for v in at], [min(v) for v in at], [max(v) for v in at])


def _classes(comparison: Comparison, names: Sequence[str], rival: str) -> str:
    def mean(name: str) -> list[float]:
        return [fmean(values) for values in zip(*(r.metrics["per_class"] for r in comparison.of(name)), strict=True)]

    series = [(name, mean(name), names.index(name)) for name in dict.fromkeys(("host", rival))]
    order = list(range(len(comparison.classes)))
    note = ""
    if len(order) > 20:  # the classes that change most tell most
        order = sorted(order, key=lambda i: abs(series[-1][1][i] - series[0][1][i]), reverse=True)[:20]
        note = "<p class=small>The 20 classes that change most.</p>"
    picked = [(name, [values[i] for i in order], colour) for name, values, colour in series]
    return draw.dots([comparison.classes[i] for i in order], picked, "top-1 (%)") + note


def _confusions(comparison: Comparison, rival: str) -> str:
    pictures = []
    for name in dict.fromkeys(("host", rival)):
        matrices = [run.metrics["confusion"] for run in comparison.of(name)]
        summed = [[sum(cells) for cells in zip(*lines, strict=True)] for lines in zip(*matrices, strict=True)]
        pictures.append(draw.heat(summed, comparison.classes, name))
    note = "<p class=small>Rows are the truth, columns the answer, all seeds together; point at a cell to read it.</p>"
    return f"<div class=pair>{''.join(f'<div>{each}</div>' for each in pictures)}</div>{note}"


def _looks(comparison: Comparison) -> str:
    if not comparison.looks:
        return ""
    note = "Attention rolled out over all layers, first seed; the maps of an image have one scale, dark is least."
    return f"<h2>Where they look</h2>{attention.drawn(comparison.looks)}<p class=small>{note}</p>"


def _origin(comparison: Comparison) -> str:
    made = "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in versions().items())
    settings = escape(yaml.safe_dump(plain(comparison.plan.recipe), sort_keys=False))
    again = "".join(
        f"glocal train runs/{each.variant}-seed{each.seed}/recipe.yaml -o again\n" for each in comparison.results[:1]
    )
    return (
        f"<pre>{escape(comparison.command)}</pre><p class=small>One run of it alone, from this folder:</p>"
        f"<pre>{escape(again.strip())}</pre><table class=plain>{made}</table>"
        f"<details><summary>The host's recipe; the variants differ in their mechanisms alone</summary>"
        f"<pre>{settings}</pre></details>"
    )


def _two(first: str, second: str) -> str:
    return f"<div class=pair><div>{first}</div><div>{second}</div></div>"


_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>{title}</title><style>{style}</style><body>{body}</body></html>\n"
)
