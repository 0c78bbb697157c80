"""Draws what was seen: maps over the image, grids of heads, lines by layer, sampling points.

One scale for all models of a figure, or their maps could not be compared. Colours are safe for the colour-blind:
cividis for maps, Okabe and Ito's palette for lines, which differ in marker too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw
from torch import Tensor

MAP = colormaps["cividis"]
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "osD^vP"
GREEN, RED = "#00E08A", "#FF3B30"  # told apart by lightness and by shape: a frame and dots


@dataclass(frozen=True)
class Row:
    """One image and what each model made of it."""

    picture: Image.Image
    title: str
    maps: Mapping[str, Tensor]
    notes: Mapping[str, str]
    """A line below each model's map, such as its prediction."""


def large(picture: Image.Image, side: int = 224) -> Image.Image:
    """Show a small picture's pixels as squares, so that maps over it are not as coarse as it is."""
    factor = -(-side // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def overlay(picture: Image.Image, patch_map: Tensor, low: float, high: float) -> Image.Image:
    """Lay a map over a picture: dim and grey where it is low, bright and coloured where it is high."""
    share = np.asarray(
        Normalize(low, max(high, low + 1e-12), clip=True)(patch_map.float().cpu().numpy()), dtype=np.float32
    )
    smooth = Image.fromarray(share).resize(picture.size, Image.Resampling.BILINEAR)  # bicubic overshoots
    share = np.clip(np.asarray(smooth), 0, 1)[..., None]
    grey = np.asarray(picture.convert("L"), dtype=np.float32)[..., None] / 255
    colour = MAP(share[..., 0])[..., :3]
    mixed = (0.4 + 0.45 * share) * colour + (0.6 - 0.45 * share) * grey
    return Image.fromarray((np.clip(mixed, 0, 1) * 255).round().astype(np.uint8))


def side_by_side(rows: Sequence[Row], label: str) -> Figure:
    """Show each image and the models' maps beside it; each row has one scale, told at its right."""
    names = list(rows[0].maps)
    figure, axes = _grid(len(rows), 1 + len(names), 2.5, 2.75)
    for line, row in zip(axes, rows, strict=True):
        high = max(float(each.max()) for each in row.maps.values())
        low = min(float(each.min()) for each in row.maps.values())
        picture = large(row.picture)
        _picture(line[0], picture, row.title)
        for place, (name, patch_map) in zip(line[1:], row.maps.items(), strict=True):
            _picture(place, overlay(picture, patch_map, low, high), name)
            place.set_xlabel(row.notes.get(name, ""), fontsize=8)
        _bar(figure, line, low, high, label)
    return figure


def head_grid(picture: Image.Image, maps: Mapping[str, Tensor], threshold: float = 0.0, most: int = 8) -> Figure:
    """Show every head of each model on one scale; weights below a share of the highest are left dark."""
    picture, columns = large(picture), min(most, max(len(each) for each in maps.values()))
    lines = {name: heads.split(columns) for name, heads in maps.items()}
    figure, axes = _grid(sum(map(len, lines.values())), 1 + columns, 1.7, 1.95)
    low = min(float(each.min()) for each in maps.values())
    high = max(float(each.max()) for each in maps.values())
    cut, row = low + threshold * (high - low), 0
    for name, parts in lines.items():
        _picture(axes[row][0], picture, name)
        for part, heads in enumerate(parts):
            for i, head in enumerate(heads):
                shown = overlay(picture, head.where(head >= cut, low), low, high)
                _picture(axes[row][1 + i], shown, f"head {part * columns + i}")
            row += 1
    _bar(figure, axes.flat, low, high, "weight")
    return figure


def query_grid(blocks: Mapping[int, Tensor], place: tuple[float, float], title: str) -> Figure:
    """Show what one place looks at, heads across and layers down; darker is more, the place is framed."""
    columns = max(len(each) for each in blocks.values())
    figure, axes = _grid(len(blocks), columns, 1.0, 1.05)
    before = 0
    for line, (layer, heads) in zip(axes, blocks.items(), strict=True):
        for j, head in enumerate(heads):
            line[j].imshow(head.cpu().numpy(), cmap="Greys", vmin=0, interpolation="nearest")
            height, width = head.shape
            down, across = min(int(place[0] * height), height - 1), min(int(place[1] * width), width - 1)
            line[j].add_patch(Rectangle((across - 0.5, down - 0.5), 1, 1, fill=False, edgecolor=RED, linewidth=1.4))
            line[j].axis("on")
            line[j].set(xticks=[], yticks=[])
            if len(heads) != before:
                line[j].set_title(f"head {j}", fontsize=7, pad=2)
        line[0].set_ylabel(f"{layer}", fontsize=8, rotation=0, labelpad=8, va="center")
        before = len(heads)
    figure.suptitle(_wrapped(f"{title}: looks of the framed place, layer by layer", 14 * columns), fontsize=9)
    return figure


def panels(
    parts: Mapping[str, Mapping[str, Tensor]],
    ylabel: str,
    bounds: Mapping[str, Tensor] | None = None,
    *,
    one_scale: bool = True,
) -> Figure:
    """Draw several measures of the same models side by side."""
    figure = Figure(figsize=(3.4 * len(parts) + 0.6, 3.4), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(parts), sharey=one_scale, squeeze=False)[0]
    for place, (title, curves) in zip(axes, parts.items(), strict=True):
        draw_lines(place, curves, bounds or {})
        place.set_title(title, fontsize=10)
        place.set_xlabel("layer")
    axes[0].set_ylabel(ylabel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def draw_lines(axes: Axes, curves: Mapping[str, Tensor], bounds: Mapping[str, Tensor]) -> None:
    """Put lines on axes."""
    for i, (name, values) in enumerate(curves.items()):
        style: Any = {"color": LINES[i % len(LINES)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        axes.plot(range(len(values)), values.numpy(), label=name, **style)
    for name, values in bounds.items():
        axes.plot(range(len(values)), values.numpy(), "--", color="0.4", linewidth=1, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def dots(picture: Image.Image, points: Mapping[str, Tensor], token: tuple[int, int], size: tuple[int, int]) -> Figure:
    """Show the (points, 2) places, row and column in pixels, that a token of a `size` map is made of."""
    figure, axes = _grid(1, len(points), 4.2, 4.4)
    height, width = picture.height / size[0], picture.width / size[1]
    for place, (name, where) in zip(axes[0], points.items(), strict=True):
        _picture(place, picture, name)
        corner = (token[1] * width - 0.5, token[0] * height - 0.5)
        place.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=GREEN, linewidth=2))
        place.scatter(where[:, 1], where[:, 0], s=9, color=RED, edgecolors="white", linewidths=0.3, zorder=3)
        place.set_xlim(-0.5, picture.width - 0.5)
        place.set_ylim(picture.height - 0.5, -0.5)
    return figure


def dense_grid(
    picture: Image.Image,
    maps: Mapping[str, Mapping[str, Tensor]],
    titles: Sequence[str],
    belonging: Sequence[Image.Image],
) -> Figure:
    """Show image, labels or boxes, the global map and every class's map; one scale for each column."""
    figure, axes = _grid(len(maps), 2 + len(titles), 2.0, 2.3)
    for line, (name, found), drawn in zip(axes, maps.items(), belonging, strict=True):
        _picture(line[0], picture, "")
        line[0].set_ylabel(_wrapped(name), fontsize=9)
        _picture(line[1], drawn, "tokens of each class")
        for place, title in zip(line[2:], titles, strict=True):
            if title not in found:
                continue
            every = [each[title] for each in maps.values() if title in each]
            low, high = min(float(m.min()) for m in every), max(float(m.max()) for m in every)
            _picture(place, overlay(picture, found[title], low, high), title)
    return figure


def framed(picture: Image.Image, boxes: Mapping[str, Sequence[tuple[float, float, float, float]]]) -> Image.Image:
    """Draw boxes on a picture, one colour for each name."""
    shown = picture.convert("RGB")
    pen = ImageDraw.Draw(shown)
    for i, (name, each) in enumerate(boxes.items()):
        for box in each:
            pen.rectangle(box, outline=LINES[i % len(LINES)], width=3)
            pen.text((box[0] + 4, box[1] + 2), name, fill="white", stroke_width=1, stroke_fill="black")
    return shown


def coloured(labels: Tensor) -> Image.Image:
    """Paint a label map, 255 in white."""
    palette = (np.asarray([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in ("#000000", *LINES)])).astype(np.uint8)
    found = labels.cpu().numpy()
    painted = palette[np.where(found == 0, 0, 1 + (found - 1) % len(LINES))]
    painted[found == 255] = 255
    return Image.fromarray(painted)


def _grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * columns + 0.5, height * rows), layout="constrained", dpi=150)
    axes = figure.subplots(rows, columns, squeeze=False)
    for place in axes.flat:
        place.axis("off")
    return figure, axes


def _picture(axes: Axes, picture: Image.Image, title: str) -> None:
    axes.axis("on")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.imshow(picture)
    axes.set_title(_wrapped(title), fontsize=9)


def _bar(figure: Figure, axes: Any, low: float, high: float, label: str) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(Normalize(low, high), MAP), ax=list(axes), fraction=0.02, pad=0.01, aspect=25)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _wrapped(text: str, width: int = 28) -> str:
    lines, line = [], ""
    for word in text.replace("_", "_\u200b").split("\u200b"):  # long model names break at underscores
        for part in word.split(" "):
            glue = "" if not line or line.endswith("_") else " "
            if line and len(line) + len(glue) + len(part) > width:
                lines.append(line)
                line = part
            else:
                line += glue + part
    return "\n".join([*lines, line])
