"""Pictures of a comparison as inline SVG: nothing to load, sharp at any size, readable in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor

from glocal.compare.labels import shortened

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 34
_LEVEL, _TURNED = 10, 10  # columns whose names stand level; letters of a name that is turned


@dataclass(frozen=True)
class Line:
    """A curve with the lowest and highest of its seeds around it."""

    name: str
    x: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class _Scale:
    start: float
    stop: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = (value - self.start) / ((self.stop - self.start) or 1)
        return round(self.first + share * (self.last - self.first), 1)


def curves(lines: Sequence[Line], x_name: str, y_name: str) -> str:
    """Draw curves over epochs, with bands."""
    values = [value for line in lines for value in (*line.low, *line.high)]
    places = [value for line in lines for value in line.x]
    low, high, ticks = _nice(min(values), max(values))
    x = _Scale(min(places), max(places), LEFT, WIDTH - RIGHT)
    y = _Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_axes(y, ticks, x_name, y_name)]
    for tick in _whole(min(places), max(places)):
        parts.append(_text(x(tick), HEIGHT - BOTTOM + 15, f"{tick:g}", "middle"))
    for i, line in enumerate(lines):
        there = [*zip(line.x, line.high, strict=True), *reversed(list(zip(line.x, line.low, strict=True)))]
        parts.append(f'<polygon class="band c{i}" points="{_points(there, x, y)}"/>')
        if len(line.x) == 1:  # a line needs two points to be seen
            parts.append(f'<circle class="c{i}" cx="{x(line.x[0])}" cy="{y(line.mean[0])}" r="4"/>')
        path = _points(list(zip(line.x, line.mean, strict=True)), x, y)
        parts.append(f'<polyline class="line c{i}" points="{path}"><title>{escape(line.name)}</title></polyline>')
    return _svg(parts) + legend([line.name for line in lines])


def dots(names: Sequence[str], series: Sequence[tuple[str, Sequence[float], int]], y_name: str) -> str:
    """Draw a dot per group and series, joined within the group; each series has a name, heights and a colour."""
    values = [value for _, heights, _ in series for value in heights]
    low, high, ticks = _nice(min(values), max(values))
    y = _Scale(low, high, HEIGHT - BOTTOM, TOP)
    group = (WIDTH - LEFT - RIGHT) / len(names)
    turned = len(names) > _LEVEL
    short = shortened(names, _TURNED if turned else (group - 8) / 6)
    parts = [_axes(y, ticks, "", y_name)]
    for i, name in enumerate(names):
        x = round(LEFT + group * (i + 0.5), 1)
        levels = [y(heights[i]) for _, heights, _ in series]
        parts.append(f'<line class="join" x1="{x}" x2="{x}" y1="{min(levels)}" y2="{max(levels)}"/>')
        for (label, heights, colour), level in zip(series, levels, strict=True):
            note = escape(f"{name}, {label}: {heights[i]:.1f}")
            parts.append(f'<circle class="c{colour}" cx="{x}" cy="{level}" r="5"><title>{note}</title></circle>')
        if len(names) <= 20:
            parts.append(_below(x, HEIGHT - BOTTOM + 15, short[i], turned, name))
    return _svg(parts, HEIGHT + (40 if turned else 0)) + legend(
        [label for label, _, _ in series], [colour for _, _, colour in series]
    )


def intervals(rows: Sequence[tuple[str, float, float | None, float | None, int]], x_name: str) -> str:
    """Draw each gain as a dot with its interval on one line; the line at 0 is the host."""
    ends = [value for _, mean, low, high, _ in rows for value in (mean, low, high, 0.0) if value is not None]
    low, high, ticks = _nice(min(ends), max(ends))
    height = 40 + 30 * len(rows)
    x = _Scale(low, high, 130, WIDTH - 60)
    parts = [f'<line class="grid" x1="{x(t)}" x2="{x(t)}" y1="8" y2="{height - 30}"/>' for t in ticks]
    parts += [_text(x(t), height - 16, f"{t:+g}" if t else "0", "middle") for t in ticks]
    parts.append(f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="8" y2="{height - 30}"/>')
    short = shortened([name for name, *_ in rows], 20)
    for i, (name, mean, start, stop, colour) in enumerate(rows):
        level = 24 + 30 * i
        parts.append(_text(122, level + 4, short[i], "end", name))
        if start is not None and stop is not None:
            parts.append(f'<line class="line c{colour}" x1="{x(start)}" x2="{x(stop)}" y1="{level}" y2="{level}"/>')
        parts.append(f'<circle class="c{colour}" cx="{x(mean)}" cy="{level}" r="5"/>')
        parts.append(_text(WIDTH - 4, level + 4, f"{round(mean, 2) + 0.0:+.2f}", "end"))
    parts.append(_text((WIDTH + 70) / 2, height - 2, x_name, "middle"))
    return _svg(parts, height)


def heat(matrix: Sequence[Sequence[float]], names: Sequence[str], title: str) -> str:
    """Draw a confusion matrix; each row sums to 100 %, what is wrong is drawn stronger."""
    count = len(names)
    side = 300 / count
    turned = count > _LEVEL
    beside, below = shortened(names, 7), shortened(names, _TURNED if turned else (side - 8) / 6)
    parts = [_text(LEFT + 150, 12, title, "middle")]
    for i, row in enumerate(matrix):
        total = sum(row) or 1
        for j, value in enumerate(row):
            share = value / total
            if share:
                kind = "right" if i == j else "wrong"
                shade = share if i == j else min(1.0, 0.25 + 3 * share)
                note = escape(f"{names[i]} taken for {names[j]}: {100 * share:.1f} %")
                parts.append(
                    f'<rect class="{kind}" opacity="{shade:.2f}" x="{LEFT + j * side:.1f}" y="{20 + i * side:.1f}" '
                    f'width="{side:.1f}" height="{side:.1f}"><title>{note}</title></rect>'
                )
        if count <= 25:
            parts.append(_text(LEFT - 5, 20 + (i + 0.65) * side, beside[i], "end", names[i]))
            parts.append(_below(LEFT + (i + 0.5) * side, 336, below[i], turned, names[i]))
    parts.append(f'<rect class="frame" x="{LEFT}" y="20" width="300" height="300"/>')
    return _svg(parts, 400 if turned else 344, 372)


def legend(names: Sequence[str], colours: Sequence[int] | None = None) -> str:
    """Name the colours."""
    items = zip(colours or range(len(names)), names, strict=True)
    return '<p class="legend">' + "".join(f'<span><i class="c{c}"></i>{escape(n)}</span>' for c, n in items) + "</p>"


def _svg(parts: Sequence[str], height: float = HEIGHT, width: float = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


def _axes(y: _Scale, ticks: Sequence[float], x_name: str, y_name: str) -> str:
    lines = [f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t)}" y2="{y(t)}"/>' for t in ticks]
    marks = [_text(LEFT - 6, y(t) + 4, f"{t:g}", "end") for t in ticks]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = (
        f'<text transform="rotate(-90 12 {middle})" x="12" y="{middle}" text-anchor="middle">{escape(y_name)}</text>'
    )
    return "".join([*lines, *marks, turned, _text((LEFT + WIDTH) / 2, HEIGHT - 4, x_name, "middle")])


def _text(x: float, y: float, text: str, anchor: str, whole: str = "", turn: str = "") -> str:
    """Write a text; what it stands for is shown where one points at it."""
    title = f"<title>{escape(whole)}</title>" if whole and whole != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}{title}</text>'


def _below(x: float, y: float, text: str, turned: bool, whole: str) -> str:
    """Name a column; where columns are narrow, from top to bottom."""
    if not turned:
        return _text(x, y, text, "middle", whole)
    return _text(x - 4, y - 8, text, "start", whole, f' transform="rotate(90 {x - 4:.1f} {y - 8:.1f})"')


def _points(pairs: Sequence[tuple[float, float]], x: _Scale, y: _Scale) -> str:
    return " ".join(f"{x(a)},{y(b)}" for a, b in pairs)


def _nice(low: float, high: float) -> tuple[float, float, list[float]]:
    """Round a range outwards to whole steps of 1, 2 or 5."""
    span = (high - low) or 1.0
    size = 10.0 ** floor(_log10(span / 5))
    step = next(size * by for by in (1, 2, 5, 10) if span / (size * by) <= 6)
    first, last = floor(low / step), ceil(high / step)
    if first == last:  # one value alone
        first, last = (first - 1, last) if first > 0 else (first, last + 1)
    return first * step, last * step, [round(i * step, 10) for i in range(first, last + 1)]


def _whole(low: float, high: float) -> list[float]:
    """Mark whole numbers, nine at most, at round distances."""
    every = next(by * 10**power for power in range(9) for by in (1, 2, 5) if (high - low) / (by * 10**power) <= 8)
    return list(range(ceil(low / every) * every, floor(high) + 1, every))


def _log10(value: float) -> float:
    from math import log10

    return log10(value)
