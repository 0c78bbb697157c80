"""Names in a picture fit their room and can be told apart."""

from __future__ import annotations

import re

import pytest

from glocal.compare import draw
from glocal.compare.labels import shortened

BLOOD = tuple(f"Erythrocytus_magnificus_variegatus_{end}" for end in ("alba", "nigra", "rubra"))
WALLS = ("left_ventricle_wall_image", "right_ventricle_wall_image", "lower_ventricle_wall_image")


@pytest.mark.parametrize(
    "names",
    [BLOOD, WALLS, tuple(f"class of things number {i} long" for i in range(30)), ("a" * 40, "a" * 41), ("ab", "ba")],
)
@pytest.mark.parametrize("most", [4, 7, 20])
def test_shortened_names_fit_and_differ(names: tuple[str, ...], most: int) -> None:
    short = shortened(names, most)
    assert all(len(each) <= most for each in short)
    assert len(set(short)) == len(names)


def test_names_that_fit_stay_and_others_keep_both_ends() -> None:
    assert shortened(("cat", BLOOD[0]), 9) == ["cat", "Eryt…alba"]


@pytest.mark.parametrize("count", [3, 20])
def test_pictures_name_every_class_apart_and_in_full_where_one_points(count: int) -> None:
    names = [f"Erythrocytus_magnificus_{i:03d}_variegatus" for i in range(count)]
    heights = [float(i) for i in range(count)]
    for picture, times in (
        (draw.dots(names, [("host", heights, 0)], "top-1 (%)"), 1),
        (draw.heat([heights] * count, names, "host"), 2),
    ):
        written = re.findall(r"<text [^>]*>([^<]+)<title>([^<]+)</title></text>", picture)
        assert len(written) == times * count
        assert len({short for short, _ in written[::times]}) == count
        assert {whole for _, whole in written} == set(names)


def test_a_curve_of_one_epoch_is_seen() -> None:
    picture = draw.curves([draw.Line("host", [1], [100.0], [100.0], [100.0])], "epoch", "top-1 (%)")
    assert '<circle class="c0"' in picture
    assert picture.count('text-anchor="end"') == 2  # an axis has two ends, even where all values are one
