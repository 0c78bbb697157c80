"""Answers are compared, and scored, as VQA's evaluation says."""

from __future__ import annotations

from itertools import combinations

import pytest

from glocal.data.answers import agreement, normalise, scores


@pytest.mark.parametrize(
    ("written", "compared"),
    [
        ("Yes", "yes"),
        (" The  cat. ", "cat"),
        ("2.50", "2.50"),  # a period within decimals stays
        ("1.", "1"),
        ("u.s.", "us"),
        ("100,978", "100978"),  # no space where a comma is within a number
        ("red, white", "red white"),
        ("black-and-white", "black and white"),
        ("tv/radio (old)?", "tv radio old"),
        ("2:50 pm", "2:50 pm"),  # colons refer to times
        ("girl's", "girl's"),  # apostrophes to possessives
        ("$5", "$5"),
        ("none", "0"),
        ("Ten", "10"),
        ("someone", "someone"),
        ("an apple on a table", "apple on table"),
        ("dont know", "don't know"),
        ("it couldve", "it could've"),
        ("couldntve", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("couldnt've", "couldn't've"),
        ("were", "were"),  # a word by itself
        ("ill", "ill"),
        ("the", ""),
    ],
)
def test_an_answer_is_brought_to_the_form_it_is_compared_in(written: str, compared: str) -> None:
    assert normalise(written) == compared
    assert normalise(compared) == compared


def test_an_answer_is_scored_by_leaving_out_each_person_once() -> None:
    assert [round(agreement(same, 10), 9) for same in range(11)] == [0, 0.3, 0.6, 0.9] + [1] * 7
    for same in range(11):
        people = [True] * same + [False] * (10 - same)
        nines = [min(sum(nine) / 3, 1) for nine in combinations(people, 9)]
        assert agreement(same, 10) == pytest.approx(sum(nines) / 10)


def test_few_people_of_one_mind_are_right() -> None:
    assert [agreement(people, people) for people in (1, 2, 3, 4)] == [1, 1, 1, 1]
    assert agreement(1, 2) == pytest.approx(0.5)
    assert agreement(0, 1) == 0


def test_people_who_write_one_answer_otherwise_agree() -> None:
    given = ["2", "two", "Two.", "a dozen", "dozen"] + ["many"] * 5
    assert scores(given) == pytest.approx({"2": 0.9, "dozen": 0.6, "many": 1.0})
