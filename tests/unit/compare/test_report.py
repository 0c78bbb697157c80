"""The table says what the runs say, and the page holds it all by itself."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from glocal.compare import draw
from glocal.compare.figures import Figures
from glocal.compare.plan import plan
from glocal.compare.report import html, write
from glocal.compare.run import Comparison, Result
from glocal.compare.style import STYLE
from glocal.compare.table import rows, summary, table
from glocal.measure.statistics import gain, spread


def _result(variant: str, seed: int, top1: float) -> Result:
    right = round(top1 / 10)
    confusion = [[10 if i == j else 0 for j in range(10)] for i in range(10)]
    confusion[0] = [right] + [10 - right] + [0] * 8
    metrics = {"top1": top1, "seconds": 2.0, "confusion": confusion, "per_class": [top1] * 10}
    curve = [{"step": s, "val_top1": top1 * s / 4, "loss": 2.0 / s} for s in range(1, 5)]
    return Result(variant, seed, metrics, curve)


@pytest.fixture
def comparison() -> Comparison:
    made, pair = plan(variants=["life", "cb"], seeds=3, epochs=4)
    scores = {"host": (80.0, 82.0, 81.0), "life": (90.0, 91.0, 92.0), "cb": (81.0, 80.0, 82.0)}
    results = [_result(name, seed, top1) for name, each in scores.items() for seed, top1 in enumerate(each)]
    figures = {name: Figures(100_000 * (i + 1), 0.002, 1.5, 20.0) for i, name in enumerate(scores)}
    return Comparison(made, pair.train.classes, (1347, 450), figures, tuple(results), "glocal compare <x>", 12.0)


def test_the_table_has_means_spreads_gains_and_intervals(comparison: Comparison) -> None:
    host, life, context = rows(comparison)
    assert (host["top1"], host["gain"]) == (81.0, None)
    assert life["gain"] == pytest.approx(10.0)
    assert life["gain_low"] == pytest.approx(10 - 4.303 * 1.0 / 3**0.5, abs=1e-2)
    assert context["gain_low"] < 0 < context["gain_high"]
    assert "life is best: 91.00 %, +10.00 points over the host (more than chance), for +100.0 %" in summary(
        [host, life]
    )
    assert "No variant beats the plain host" in summary([host, {**context, "top1": 70.0}])
    assert "the interval includes 0" in summary([host, {**context, "top1": 99.0}])


def test_the_table_is_written_four_ways_and_machines_get_every_digit(comparison: Comparison) -> None:
    assert "91.00 ± 1.00" in table(comparison).render("text")
    assert table(comparison, "md").render("md").startswith("| variant |")
    parsed = list(csv.DictReader(io.StringIO(table(comparison, "csv").render("csv"))))
    assert [row["variant"] for row in parsed] == ["host", "life", "cb"]
    assert float(parsed[1]["gain_low"]) == rows(comparison)[1]["gain_low"]
    assert json.loads(table(comparison, "json").render("json"))[2]["seeds"] == 3


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("data:")
        ]
        if tag not in ("meta", "line", "rect", "circle", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


def test_the_page_is_whole_and_loads_nothing(comparison: Comparison, tmp_path: Path) -> None:
    path = write(comparison, tmp_path)
    text = path.read_text()
    page = _Page()
    page.feed(text)
    assert not page.links
    assert not re.search(r"https?://|url\(", text)
    assert page.tags.count("svg") == 6  # gains, accuracy, classes, loss, two confusions
    assert "glocal compare &lt;x&gt;" in text
    assert "life is best" in text
    assert "host/bad" not in text
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"report.html", "table.txt", "table.md", "table.csv", "table.json", "results.json"}
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 9


def test_names_of_classes_cannot_break_the_page(comparison: Comparison) -> None:
    from dataclasses import replace

    evil = replace(comparison, classes=("<script>alert(1)</script>", *comparison.classes[1:]))
    assert "<script>" not in html(evil)


def test_a_class_named_in_other_bytes_than_text_is_reported(comparison: Comparison, tmp_path: Path) -> None:
    from dataclasses import replace

    odd = replace(comparison, classes=("t\udcfcr", *comparison.classes[1:]))
    assert "t?r" in write(odd, tmp_path).read_text()


def test_one_seed_has_no_interval_and_many_classes_are_shortened(comparison: Comparison) -> None:
    from dataclasses import replace

    alone = replace(comparison, results=tuple(each for each in comparison.results if each.seed == 0))
    assert "one seed tells nothing about chance" in summary(rows(alone))
    assert rows(alone)[1]["gain_text"] == "+10.00"
    many = tuple(str(i) for i in range(40))
    wide = tuple(
        replace(r, metrics={**r.metrics, "per_class": [50.0] * 40, "confusion": [[1] * 40] * 40})
        for r in comparison.results
    )
    assert "The 20 classes that change most" in html(replace(comparison, classes=many, results=wide))


def test_every_variant_has_a_colour() -> None:
    assert all(f".c{i}{{fill:" in STYLE and f"i.c{i}{{background:" in STYLE for i in range(30))


def test_axes_end_on_round_numbers() -> None:
    assert draw._nice(0.3, 97.2) == (0, 100, [0, 20, 40, 60, 80, 100])
    low, high, ticks = draw._nice(-3.1, 7.6)
    assert low <= -3.1 and high >= 7.6 and 0 in ticks
    assert draw._nice(5, 5)[0] <= 5
    assert draw._whole(1, 85) == [20, 40, 60, 80]
    assert draw._whole(1, 4) == [1, 2, 3, 4]


def test_a_gain_is_estimated_run_by_run() -> None:
    steady = gain([10, 50, 90], [12, 52, 92])
    assert (steady.low, steady.high) == (2, 2)
    assert gain([1], [2]).low is None
    assert spread([1.0]) is None
    from scipy import stats

    base, other = [80.0, 82.0, 81.0, 79.5], [84.0, 83.0, 86.0, 82.0]
    expected = stats.ttest_rel(other, base).confidence_interval()
    found = gain(base, other)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
