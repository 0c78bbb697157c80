"""Answers in words: brought to one form as VQA's evaluation defines it, and scored by how many people gave them.

Antol et al., "VQA: Visual Question Answering"; the form is told at visualqa.org/evaluation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

# Apostrophe and colon stay, for possessives and times; so do signs that are read aloud, such as $ and %.
_MARKS = re.compile(r"""[]!"()+,\-/;<=>?@[\\_`{}]""")
_BETWEEN_DIGITS = re.compile(r"(?<=\d),(?=\d)")  # 100,978
_PERIOD = re.compile(r"\.(?!\d)")  # any that begins no decimals
_ARTICLES = {"a", "an", "the"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0"} | {word: str(i) for i, word in enumerate(_NUMBERS)}
# What may stand before each ending; words that mean something without the apostrophe are not among them: were, ill.
_ENDINGS = {
    "n't": "ai are ca could did do does had has have is might must need ought sha should was wo would",
    "'ve": "could i might must not should they we what where who would you",
    "'re": "they there what who why you",
    "'ll": "how it that they what who why you",
    "'d": "he how it somebody someone something there they where who you",
    "'s": "he how somebody someone something that there what when where who why",
    "'m": "i",
    "n't've": "could did had might must should would",
    "'d've": "he i it she somebody someone something there they we who you",
}


def _contractions() -> Iterator[tuple[str, str]]:
    for ending, stems in _ENDINGS.items():
        for stem in stems.split():
            whole = stem + ending
            yield whole.replace("'", ""), whole
            if whole.count("'") > 1:  # with one of two apostrophes
                first, second, third = whole.split("'")
                yield f"{first}'{second}{third}", whole
                yield f"{first}{second}'{third}", whole
    yield from ((whole.replace("'", ""), whole) for whole in ("ma'am", "o'clock", "y'all", "'twas"))


_CONTRACTIONS = dict(_contractions())


@cache
def normalise(answer: str) -> str:
    """Bring an answer to the form in which answers are compared."""
    plain = _MARKS.sub(" ", _BETWEEN_DIGITS.sub("", answer.lower()))
    words = (_DIGITS.get(word, word) for word in _PERIOD.sub("", plain).split())
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def agreement(same: int, people: int) -> float:
    """Score an answer that some of the people gave: min(others who gave it / 3, 1), each left out once, on average.

    For VQA's ten people that is 0.3, 0.6, 0.9 and, from four on, 1: ViLT's soft targets too. Where there are fewer than
    four, all but one are enough, so that people of one mind are always right.
    """
    enough = max(min(3, people - 1), 1)
    if people == 1:
        return float(same)
    left_out, others = min((same - 1) / enough, 1), min(same / enough, 1)
    return (same * left_out + (people - same) * others) / people


def scores(answers: Sequence[str]) -> dict[str, float]:
    """Score each answer that people gave to one question, in the form for comparing; other answers score 0."""
    counts = Counter(normalise(each) for each in answers)
    return {answer: agreement(same, len(answers)) for answer, same in counts.items()}
