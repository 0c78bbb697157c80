"""What there is to choose from, as tables: models by name, hosts, mechanisms, released checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from fnmatch import fnmatch
from pkgutil import iter_modules
from typing import Any

import timm
import torch
from timm.models import list_models
from torch import nn

from glocal import models, papers
from glocal.errors import GlocalError
from glocal.hosts import ADAPTERS, sites
from glocal.measure.table import Column, Table
from glocal.mechanisms.names import CONFIGS
from glocal.named_models import NAMED
from glocal.released import RELEASES
from glocal.site import Mechanism, Site

_MODELS = (
    Column("model", "model"),
    Column("host", "host"),
    Column("mechanisms", "mechanisms"),
    Column("arguments", "arguments"),
    Column("tables", "tables of"),
)
_HOSTS = (Column("host", "host"), Column("example", "for example"), Column("takes", "takes"))
_MECHANISMS = (
    Column("mechanism", "mechanism"),
    Column("seams", "seams"),
    Column("options", "options"),
    Column("about", "about"),
)
_RELEASES = (
    Column("release", "release"),
    Column("model", "model"),
    Column("mechanisms", "mechanisms"),
    Column("classes", "classes"),
)
# A small and well-known model of each family that timm has.
_EXAMPLES = {
    "VisionTransformer": "deit_tiny_patch16_224",
    "SwinTransformer": "swin_tiny_patch4_window7_224",
    "SwinTransformerV2": "swinv2_tiny_window8_256",
    "SwinTransformerV2Cr": "swinv2_cr_tiny_ns_224",
    "PyramidVisionTransformerV2": "pvt_v2_b0",
    "TNT": "tnt_s_patch16_224",
    "PoolingVisionTransformer": "pit_ti_224",
    "MlpMixer": "mixer_s16_224",
    "PyramidVisionTransformer": "pvt_tiny",
    "LIT": "lit_tiny",
    "T2TViT": "t2t_vit_7",
}


def model_table(wanted: str = "") -> Table:
    """List the models that glocal adds to timm: its own architectures, then the papers' models on any host."""
    rows = [{"model": name, "host": name} for name in own_models()]
    rows += [
        {
            "model": name,
            "host": entry.host,
            "mechanisms": entry.mechanisms,
            "arguments": ", ".join(f"{key}={value}" for key, value in entry.arguments.items()),
        }
        for name, entry in NAMED.items()
    ]
    return Table(_MODELS, _chosen([{**row, "tables": _tables(row["model"])} for row in rows], wanted))


def own_models() -> list[str]:
    """Name the architectures that timm lacks and glocal brings."""
    return [name for module in iter_modules(models.__path__) for name in sorted(list_models(module=module.name))]


def host_table(wanted: str = "") -> Table:
    """List the host families, and the mechanisms that each takes."""
    rows: list[dict[str, Any]] = []
    for kind in ADAPTERS:
        example = _EXAMPLES.get(kind.__name__) or list_models(module=kind.__module__.rpartition(".")[2])[0]
        with torch.device("meta"):
            host = timm.create_model(example)
        rows.append({"host": kind.__name__, "example": example, "takes": ", ".join(fitting(host))})
    return Table(_HOSTS, _chosen(rows, wanted))


def mechanism_table(wanted: str = "") -> Table:
    """List the mechanisms, where they sit and their options."""
    rows = [
        {
            "mechanism": name.replace("_", "-"),
            "seams": ", ".join(kind().seams(False)),
            "options": ", ".join(f"{each.name}={each.default}" for each in fields(kind)),
            "about": (kind.__doc__ or "").strip().splitlines()[0],
        }
        for name, kind in CONFIGS.items()
    ]
    return Table(_MECHANISMS, _chosen(rows, wanted))


def release_table(wanted: str = "") -> Table:
    """List the released checkpoints that `load_released` knows, and the model each becomes."""
    rows = [
        {
            "release": name,
            "model": release.model,
            "mechanisms": release.mechanisms or (NAMED[release.model].mechanisms if release.model in NAMED else ""),
            "classes": release.classes,
        }
        for name, release in RELEASES.items()
    ]
    return Table(_RELEASES, _chosen(rows, wanted))


def fitting(host: nn.Module) -> list[str]:
    """Name the mechanisms that find a place in a host."""
    offered = sites(host)
    return [name.replace("_", "-") for name, kind in CONFIGS.items() if _fits(kind(), offered)]


def _tables(model: str) -> str:
    numbers: dict[str, list[str]] = {}
    for row in papers.rows():
        seen = numbers.setdefault(papers.PAPERS[row.paper], [])
        if row.model == model and str(row.table) not in seen:
            seen.append(str(row.table))
    return "; ".join(f"{paper} {', '.join(tables)}" for paper, tables in numbers.items() if tables)


def _fits(mechanism: Mechanism, offered: Iterable[Site]) -> bool:
    free = {site.seam for site in offered if not (mechanism.replaces(False) and site.plain)}
    return free.issuperset(mechanism.seams(False))


def _chosen(rows: list[dict[str, Any]], wanted: str) -> list[dict[str, Any]]:
    pattern = wanted.lower() if any(mark in wanted for mark in "*?[") else f"*{wanted.lower()}*"
    kept = [row for row in rows if any(fnmatch(str(value).lower(), pattern) for value in row.values())]
    if not kept:
        raise GlocalError(f"nothing matches {wanted!r}. Leave out --filter to see all {len(rows)}.")
    return kept
