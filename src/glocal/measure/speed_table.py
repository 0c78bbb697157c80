"""Timings as a table and a picture."""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from glocal.errors import GlocalError
from glocal.measure.cost import parse_size
from glocal.measure.speed import Mode, Setting, speed_rows
from glocal.measure.table import Column, Table

COLUMNS = (
    Column("model", "model"),
    Column("mode", "mode"),
    Column("dtype", "type"),
    Column("batch", "batch"),
    Column("size", "size"),
    Column("ms", "median ms", ".2f"),
    Column("low", "25 %", ".2f"),
    Column("high", "75 %", ".2f"),
    Column("ratio", "ratio", ".3f"),
    Column("images_s", "images/s", ".0f"),
    Column("memory", "MiB", ".0f"),
    Column("paper_ms", "paper ms", ".2f"),
    Column("paper_ratio", "paper ratio", ".2f"),
)


def speed_table(
    host: str,
    variants: Sequence[str] = (),
    *,
    modes: Sequence[str] = ("eager",),
    batches: Sequence[int] = (1,),
    sizes: Sequence[str] = ("224",),
    train: bool = False,
    dtype: str = "float32",
    device: str = "",
    rounds: int = 20,
    threads: int = 0,
    graphs: bool = False,
    against: str | None = None,
) -> Table:
    """Time a host beside its variants for every mode, size and batch; LIFE's Table 5 stands beside where it applies."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise GlocalError(
            f"the device is {device!r}; use cpu or cuda. CUDA_VISIBLE_DEVICES chooses one of several GPUs."
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise GlocalError("there is no cuda device here. Use --device cpu.")
    if train and (graphs or not set(modes) <= {"eager", "compiled"}):
        raise GlocalError(
            "training steps run eager or compiled: folded and optimised models, and graphs, do not train."
        )
    if graphs and (device == "cpu" or not set(modes) & {"compiled", "optimised"}):
        raise GlocalError("graphs are replayed on a GPU, in compiled and optimised modes. Leave --graphs out.")
    if threads > (cores := os.cpu_count() or threads):
        raise GlocalError(f"{threads} threads were asked for, and there are {cores} cores. Use at most {cores}.")
    if threads:
        torch.set_num_threads(threads)
    pixels = [cast("tuple[int, int]", parse_size(size)) for size in sizes]
    settings = [
        Setting(cast("Mode", mode), batch, size, train, device, dtype, graphs)
        for mode, size, batch in product(modes, pixels, batches)
    ]
    rows = list(speed_rows(host, variants, settings, rounds=rounds, against=against))
    return Table(COLUMNS, rows, notes=(_machine(device, rounds),))


def check_plot(path: Path | None) -> None:
    """Refuse a picture that could not be drawn, before minutes are spent on its figures."""
    if path is None:
        return
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise GlocalError(f"cannot draw to {path}: give a file that ends in .png, .pdf or .svg.")
    made = [each for each in path.parents if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
        for each in made:  # what follows may be refused yet
            each.rmdir()
    except OSError as error:
        raise GlocalError(f"cannot draw to {path}: {error.strerror or error}.") from None


def draw(table: Table, path: Path) -> Path:
    """Draw each model's median time over the image size, and beside it the ratio to the host."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, ratios = figure.subplots(1, 2)
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in table.rows:
        lines.setdefault(f"{row['model']}, {row['mode']}, batch {row['batch']}", []).append(row)
    for label, rows in lines.items():
        ordered = sorted(rows, key=_pixels)
        area = [_pixels(row) for row in ordered]
        spread = [[row["ms"] - row["low"] for row in ordered], [row["high"] - row["ms"] for row in ordered]]
        times.errorbar(area, [row["ms"] for row in ordered], yerr=spread, marker="o", capsize=3, label=label)
        ratios.plot(area, [row["ratio"] for row in ordered], marker="o")
    sizes = {_pixels(row): row["size"] for row in table.rows}
    for axes in (times, ratios):
        axes.set(xlabel="image", xscale="log")
        axes.set_xticks(list(sizes), list(sizes.values()))
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
    times.set(ylabel="ms, median and quartiles", yscale="log")
    ratios.set(ylabel="ratio to the host")
    times.legend(fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format=path.suffix[1:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.getvalue())
    except OSError as error:
        raise GlocalError(f"cannot draw to {path}: {error.strerror or error}.") from None
    return path


def _pixels(row: dict[str, Any]) -> int:
    height, width = (int(side) for side in row["size"].split("x"))
    return height * width


def _machine(device: str, rounds: int) -> str:
    name = (
        torch.cuda.get_device_name() if device != "cpu" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return (
        f"torch {torch.__version__}, {name}; {rounds} interleaved rounds; ratio: median over rounds, to the first row."
    )
