"""Outputs of the tiny architectures at an odd, non-square size stay the same: padding, resampling and merging included.

The released models' own outputs are held in `released.json`; their code has no answer at this size.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.golden.plain import filled
from tests.unit.models.tiny import TINY

# The first three logits of the first image, and the mean over both.
STORED: dict[str, tuple[float, ...]] = {
    "pvt": (0.771763, 0.801859, -0.709266, 0.544598),
    "pvt_msa": (1.071318, -0.132194, -0.290197, -0.449691),
    "lit": (-0.354974, 0.584948, 1.659935, 0.488065),
    "lit_star": (-0.389552, 0.699265, 0.003930, 0.202334),
    "lit_absolute": (-0.188656, 1.097849, 0.940663, 0.288080),
    "t2t": (0.185130, 0.067270, -0.369481, 0.223150),
    "t2t_transformer": (0.440308, 0.687361, 0.589619, 0.405156),
    "t2t_small": (0.271724, 0.223436, 1.022391, 0.332739),
}


def outputs(name: str) -> Tensor:
    model = TINY[name]().eval()
    state = model.state_dict()
    weights = filled({key: tuple(value.shape) for key, value in state.items() if value.is_floating_point()})
    if name.startswith("t2t"):
        weights.pop("pos_embed")  # fixed, not learned
    model.load_state_dict({**state, **weights})
    with torch.no_grad():
        return model(torch.randn(2, 3, 70, 101, generator=torch.Generator().manual_seed(0)))


def digest(logits: Tensor) -> tuple[float, ...]:
    return (*logits[0, :3].tolist(), logits.mean().item())


@pytest.mark.parametrize("name", TINY)
def test_outputs_stay_the_same(name: str) -> None:
    assert digest(outputs(name)) == pytest.approx(STORED[name], abs=2e-5)
