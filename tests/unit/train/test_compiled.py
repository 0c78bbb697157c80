"""Compiled bf16 training follows eager training: it has been seen to diverge with depth-wise convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.compiled_training import CASES, losses


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0][0].split('_')[0]}-{case[1] or 'host'}")
def test_compiled_training_follows_eager_training(case, tmp_path: Path) -> None:
    eager, compiled = (losses(case, each, tmp_path / str(each)) for each in (False, True))
    assert torch.isfinite(compiled).all()
    assert torch.allclose(eager[:5], compiled[:5], atol=0.05)
    ends = [float(each[-50:].mean()) for each in (eager, compiled)]
    print(f"eager {float(eager[0]):.3f} -> {ends[0]:.3f}, compiled {float(compiled[0]):.3f} -> {ends[1]:.3f}")
    assert ends[0] < 0.8 * float(eager[0])
    assert abs(ends[0] - ends[1]) < 0.15
