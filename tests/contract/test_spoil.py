"""Every host, with the fullest mixture it takes, can be stepped against."""

from __future__ import annotations

import torch

from glocal.measure.spoil import Scale, fgsm
from tests.contract.cases import images
from tests.contract.test_lifecycle import every_host, mixture

LOSS = torch.nn.functional.cross_entropy


@every_host
def test_a_step_moves_every_pixel_and_raises_the_loss(name: str) -> None:
    model = mixture(name)
    scale = Scale((0.5,) * 3, (0.25,) * 3)
    shown = images(name).clamp(-2, 2) * 0.9  # away from black and white
    labels = model(shown).argmax(dim=1)
    moved = fgsm(model, shown, labels, 0.001, scale)
    steps = (moved - shown).abs()
    assert torch.allclose(steps[steps > 0], torch.tensor(0.004), atol=1e-6)
    assert (steps > 0).float().mean() > 0.95
    assert LOSS(model(moved), labels) > LOSS(model(shown), labels)
    assert all(each.grad is None for each in model.parameters())
