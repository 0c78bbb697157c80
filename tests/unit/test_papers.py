from __future__ import annotations

import pytest

from glocal import GlocalError, papers


def test_a_table_keeps_what_the_paper_prints() -> None:
    row = papers.table("life", 1)[3]
    assert (row.row, row.params_m, row.params_digits, row.gmacs) == ("DeiT-T-LIFE", 5.62, 2, 1.27)
    assert row.metrics["cifar100"] == 71.74
    assert row.arguments == {"num_classes": 100}
    assert row.source == "LIFE Table 1"


def test_every_table_of_the_papers_is_there() -> None:
    assert papers.tables() == [
        *(("life", n) for n in range(1, 6)),
        *(("localvit", n) for n in range(1, 6)),
        *(("lit", n) for n in range(2, 9)),
        *(("cb", n) for n in range(1, 12)),
    ]


@pytest.mark.parametrize(
    ("paper", "number", "count"),
    [
        ("life", 1, 10), ("life", 2, 18), ("life", 3, 6), ("localvit", 1, 6), ("localvit", 2, 8), ("localvit", 3, 5),
        ("localvit", 4, 8), ("localvit", 5, 20), ("lit", 2, 17), ("lit", 5, 6), ("lit", 6, 6),
        ("cb", 1, 6), ("cb", 4, 7), ("cb", 5, 9), ("cb", 6, 9),
    ],
)  # fmt: skip
def test_a_table_has_all_its_rows(paper: str, number: int, count: int) -> None:
    assert len(papers.table(paper, number)) == count


def test_find_gives_the_most_precise_print() -> None:
    found = papers.find("deit_tiny_patch16_224", "local-ffn", size=(224, 224), num_classes=1000)
    assert found is not None
    assert (found.paper, found.table, found.params_m) == ("localvit", 3, 5.91)
    assert len(papers.find_all("deit_tiny_patch16_224", "local-ffn")) == 3


def test_find_minds_size_and_classes() -> None:
    host = "deit_tiny_patch16_224"
    assert papers.find(host, "life", size=224, num_classes=100) is not None
    assert papers.find(host, "life", size=224, num_classes=1000) is None
    assert papers.find(host, "life", size=192, num_classes=100) is None
    assert papers.find(host, "dtm") is None


def test_find_takes_a_model_by_its_own_name() -> None:
    found = papers.find("localvit_tiny_mlp6_relu6", size=224, num_classes=1000)
    assert found is not None
    assert found.row == "LocalViT-T, 6, DW"


def test_another_mlp_ratio_is_another_model() -> None:
    found = papers.find("deit_tiny_patch16_224", num_classes=1000)
    assert found is not None
    assert found.params_m != 7.5


def test_unknown_papers_and_tables_are_named() -> None:
    with pytest.raises(GlocalError, match="Did you mean 'life'"):
        papers.table("lief", 1)
    with pytest.raises(GlocalError, match=r"no Table 9 here. There are: 2, 3, 4, 5, 6, 7, 8"):
        papers.table("lit", 9)
    with pytest.raises(GlocalError, match="of which paper"):
        papers.select(None, 3)
