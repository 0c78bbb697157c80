"""VQA's accuracy is the mean of what the answers given deserve."""

from __future__ import annotations

import pytest
import torch

from glocal.errors import GlocalError
from glocal.measure.answers import AnswerTally


def test_accuracy_is_counted_over_all_and_by_kind() -> None:
    tally = AnswerTally(torch.device("cpu"))
    wanted = torch.tensor([[1.0, 0.3, 0.0], [0.9, 0.6, 0.0], [0.0, 0.0, 1.0]])
    told = torch.tensor([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0], [-1.0, -2.0, -3.0]])  # 0.3, 0.9, 0
    tally.add(told, wanted, torch.tensor([0, 2, 2]))
    tally.add(told[:1], wanted[2:], torch.tensor([2]))
    figures = tally.reduced(lambda each: each).figures()
    assert figures["vqa"] == pytest.approx(100 * (0.3 + 0.9) / 4)
    assert figures["yes_no"] == pytest.approx(30)
    assert figures["other"] == pytest.approx(30)
    assert figures["questions"] == 4
    assert "number" not in figures  # nothing was counted, and nothing asked


def test_nothing_measured_is_no_accuracy() -> None:
    with pytest.raises(GlocalError, match="none of the validation images can be read"):
        AnswerTally(torch.device("cpu")).figures()
