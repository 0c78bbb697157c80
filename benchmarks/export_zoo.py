"""Export every model of the zoo to every kind of file, fixed and open, and keep a table of how far each is off.

OMP_NUM_THREADS=1 python benchmarks/export_zoo.py docs/results/export.csv [name ...]
Rows that the table has already are not made again, so it can be stopped and started.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import glocal
from glocal.errors import GlocalError
from glocal.export import export
from glocal.measure.listing import own_models
from glocal.named_models import NAMED

COLUMNS: tuple[str, ...] = ("model", "to", "open", "opset", "tried", "MB", "difference", "seconds")
OPSET = 20


def main() -> None:
    """Fill the table."""
    table, *names = sys.argv[1:]
    file = Path(table)
    done = {(row["model"], row["to"], row["open"] != "nothing") for row in _rows(file)}
    failed = 0
    for name, to, dynamic in product(names or zoo(), ("onnx", "torch-export"), (False, True)):
        if (name, to, dynamic) in done:
            continue
        try:
            _keep(file, row(name, to, dynamic))
        except GlocalError as error:
            failed += 1
            print(f"{name} {to} {'open' if dynamic else 'fixed'}: {error}", file=sys.stderr, flush=True)
    sys.exit(min(failed, 1))


def zoo() -> list[str]:
    """Name glocal's own architectures and the papers' models."""
    return [*own_models(), *NAMED]


def row(name: str, to: Any, dynamic: bool) -> dict[str, Any]:
    """Export one model at its own image size; its weights are moved off their start, where errors could hide."""
    torch.manual_seed(0)
    model = stir(glocal.create_model(name))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = export(model, Path(folder) / "model", to=to, dynamic=dynamic, opset=OPSET)
        size = done.path.stat().st_size / 1e6
    taken = time.perf_counter() - start
    return {
        "model": name,
        "to": to,
        "open": {(): "nothing", (0,): "batch"}.get(done.free, "batch, height, width"),
        "opset": OPSET if to == "onnx" else "",
        "tried": " and ".join("x".join(map(str, shape)) for shape in done.shapes),
        "MB": f"{size:.1f}",
        "difference": f"{done.difference:.1e}",
        "seconds": f"{taken:.0f}",
    }


@torch.no_grad()
def stir(model: nn.Module) -> nn.Module:
    """Move every parameter and statistic off its start: a head or a scale of zeros would hide the rest."""
    for each in model.parameters():
        each.add_(torch.randn_like(each) * 0.02)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open() as lines:
        return list(csv.DictReader(lines))


def _keep(file: Path, row: dict[str, Any]) -> None:
    fresh = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)
    print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
