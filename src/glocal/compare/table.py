"""The answer as one table: accuracy, gain and cost of each variant."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from glocal.compare.run import Comparison
from glocal.measure.statistics import gain, spread
from glocal.measure.table import Column, Table

COLUMNS = (
    Column("variant", "variant"),
    Column("top1_text", "top-1 (%)"),
    Column("gain_text", "gain [95 %]"),
    Column("params", "params (M)", ".3f"),
    Column("gmacs", "GMACs", ".4f"),
    Column("train_seconds", "train (s)", ".1f"),
    Column("latency_ms", "latency (ms)", ".2f"),
    Column("memory_mb", "memory (MB)", ".1f"),
)
# CSV and JSON keep numbers apart from how they are shown.
_FULL = (
    "variant",
    "top1",
    "top1_std",
    "gain",
    "gain_low",
    "gain_high",
    "params",
    "gmacs",
    "train_seconds",
    "latency_ms",
    "memory_mb",
    "seeds",
)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Put one variant in one row, the host first."""
    base = comparison.top1("host")
    return [_row(comparison, variant.name, base) for variant in comparison.plan.variants]


def table(comparison: Comparison, form: str = "text") -> Table:
    """Lay the rows out for people, or complete for CSV and JSON."""
    made = rows(comparison)
    if form in ("csv", "json"):
        return Table([Column(key, key) for key in _FULL], made)
    return Table(COLUMNS, made, notes=(summary(made), *warnings(comparison), _fine_print(comparison)))


def warnings(comparison: Comparison) -> tuple[str, ...]:
    """Say what keeps the figures from being what was asked for."""
    told = comparison.plan.warning
    return (f"{told[0].upper()}{told[1:]}.",) if told else ()


def best(made: list[dict[str, Any]]) -> dict[str, Any]:
    """Find the row with the highest accuracy."""
    return max(made, key=lambda row: row["top1"])


def summary(made: list[dict[str, Any]]) -> str:
    """Say in one sentence what came out."""
    top, host = best(made), made[0]
    if top is host:
        return f"No variant beats the plain host ({host['top1']:.2f} %)."
    if top["gain_low"] is None:
        sure = "one seed tells nothing about chance; use --seeds 3"
    else:
        sure = "more than chance" if top["gain_low"] > 0 else "not clearly more than chance: the interval includes 0"
    price = 100 * (top["params"] / host["params"] - 1)
    return (
        f"{top['variant']} is best: {top['top1']:.2f} %, {top['gain']:+.2f} points over the host ({sure}), "
        f"for {price:+.1f} % parameters."
    )


def _row(comparison: Comparison, name: str, base: list[float]) -> dict[str, Any]:
    accuracy, cost = comparison.top1(name), comparison.figures[name]
    deviation, better = spread(accuracy), gain(base, accuracy)
    plain = name == "host"
    return {
        "variant": name,
        "top1": fmean(accuracy),
        "top1_std": deviation,
        "top1_text": f"{fmean(accuracy):.2f}" + (f" ± {deviation:.2f}" if deviation is not None else ""),
        "gain": None if plain else better.mean,
        "gain_low": None if plain else better.low,
        "gain_high": None if plain else better.high,
        "gain_text": None if plain else str(better),
        "params": cost.params / 1e6,
        "gmacs": cost.gmacs,
        "train_seconds": fmean(each.metrics["seconds"] for each in comparison.of(name)),
        "latency_ms": cost.latency_ms,
        "memory_mb": cost.memory_mb,
        "seeds": len(accuracy),
    }


def _fine_print(comparison: Comparison) -> str:
    recipe = comparison.plan.recipe
    return (
        f"{comparison.images[0]} training and {comparison.images[1]} validation images, "
        f"{len(comparison.classes)} classes, {_count(recipe.epochs, 'epoch')}, last checkpoint, "
        f"{_count(len(comparison.plan.seeds), 'seed')}; host {recipe.host.name}. "
        f"Same budget, seeds, data order and augmentation for all."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
