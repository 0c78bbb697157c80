"""Hidden middles and signed steps, against what is worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from glocal.errors import GlocalError
from glocal.measure.spoil import HiddenCentre, Scale, SignedStep, fgsm, hide_centre, step
from glocal.mechanisms import named
from glocal.zoo import create_model

UNIT = Scale((0.0,), (1.0,))


@pytest.mark.parametrize(
    ("height", "width", "share", "rows", "columns"),
    [
        (224, 224, 0.5, (56, 168), (56, 168)),  # the paper's 112 x 112
        (8, 4, 0.5, (2, 6), (1, 3)),
        (5, 7, 0.6, (1, 4), (1, 5)),  # 3 of 5; 4 of 7, the odd pixel left on the far side
        (6, 6, 1.0, (0, 6), (0, 6)),
    ],
)
def test_the_middle_is_hidden_and_nothing_else(
    height: int, width: int, share: float, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    images = torch.rand(2, 3, height, width) + 1
    hidden = hide_centre(images, share, torch.tensor([-1.0, -2.0, -3.0])[:, None, None])
    expected = images.clone()
    for channel, value in enumerate((-1.0, -2.0, -3.0)):
        expected[:, channel, rows[0] : rows[1], columns[0] : columns[1]] = value
    assert torch.equal(hidden, expected)
    assert (images >= 1).all()  # those given are left alone


def test_hidden_is_black_before_normalisation_or_the_mean() -> None:
    scale = Scale((0.4, 0.5), (0.2, 0.25))
    images = torch.ones(1, 2, 4, 4)
    labels = torch.tensor([0])
    black = HiddenCentre()(nn.Identity(), images, labels, scale)
    assert torch.allclose(black[0, :, 1, 1], torch.tensor([-2.0, -2.0]))
    assert HiddenCentre(fill="mean")(nn.Identity(), images, labels, scale)[0, :, 1, 1].tolist() == [0, 0]
    assert (HiddenCentre(0.5).name, HiddenCentre(0.25, "mean").name) == ("centre_hidden_0.5", "centre_hidden_0.25_mean")


def _linear(weights: list[list[float]]) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weights[0]), len(weights), bias=False))
    model[1].weight.data = torch.tensor(weights)
    return model


def test_a_step_against_a_linear_model_is_as_by_hand() -> None:
    # Of two classes with weights w0 and w1, the loss at class 0 has the slope p1 (w1 - w0): its signs are known.
    model = _linear([[1.0, -1.0, 2.0, 0.0], [0.0, 1.0, 3.0, 0.0]])
    image = torch.tensor([0.5, 0.5, 0.95, 0.02]).view(1, 1, 2, 2)
    against_0 = fgsm(model, image, torch.tensor([0]), 0.1, UNIT)
    assert torch.allclose(against_0.flatten(), torch.tensor([0.4, 0.6, 1.0, 0.02]))  # cut off at 1; flat stays
    against_1 = fgsm(model, image, torch.tensor([1]), 0.6, UNIT)
    assert torch.allclose(against_1.flatten(), torch.tensor([1.0, 0.0, 0.35, 0.02]))


def test_a_model_that_is_sure_is_stepped_against_all_the_same() -> None:
    weights = torch.randn(3, 12)
    images, labels = torch.rand(4, 3, 2, 2), torch.tensor([0, 1, 2, 0])
    for strength in (1.0, 1000.0):  # cross-entropy's own slope is zero by rounding at the second
        model = _linear((strength * weights).tolist())
        others = model(images).detach().scatter(1, labels[:, None], -torch.inf).softmax(dim=1)
        rise = others[:, :, None] * (weights[None] - weights[labels][:, None])  # (B, 3, 12)
        wanted = (images + 0.1 * rise.sum(dim=1).sign().view_as(images)).clamp(0, 1)
        assert torch.allclose(fgsm(model, images, labels, 0.1, UNIT), wanted)
        assert (wanted != images).float().mean() > 0.9


def test_epsilon_is_of_pixels_whatever_normalises_them() -> None:
    mean, std = (0.3, 0.6), (0.2, 0.5)
    pixels = torch.rand(3, 2, 3, 5)
    scale = Scale(mean, std)
    normal = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten(), nn.LazyLinear(3))
    labels = torch.tensor([0, 1, 2])
    moved = fgsm(model, normal, labels, 0.05, scale)
    back = moved * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    given = pixels.clone().requires_grad_()
    seen = (given - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    nn.functional.cross_entropy(model(seen), labels).backward()
    assert given.grad is not None
    assert torch.allclose(back, (pixels + 0.05 * given.grad.sign()).clamp(0, 1), atol=1e-6)


@pytest.mark.parametrize("mechanisms", ["", "life+local-ffn+cb"])
def test_a_step_is_the_same_in_any_batch_mode_and_precision(mechanisms: str) -> None:
    grafts = named(mechanisms) if mechanisms else ()
    model = create_model(
        "vit_tiny_patch16_224", *grafts, img_size=(16, 24), patch_size=8, depth=2, embed_dim=24, num_classes=5
    ).eval()
    images, labels = torch.rand(4, 3, 16, 24) * 2 - 1, torch.arange(4)
    scale = Scale((0.5,) * 3, (0.5,) * 3)
    moved = fgsm(model, images, labels, 1 / 255, scale)
    assert (moved - images).abs().max() == pytest.approx(2 / 255, abs=1e-6)
    assert all(each.grad is None for each in model.parameters())
    alone = torch.cat([fgsm(model, images[i : i + 1], labels[i : i + 1], 1 / 255, scale) for i in range(4)])
    assert (alone != moved).float().mean() < 0.002  # where the slope is zero but for rounding
    assert torch.equal(fgsm(model, images, labels, 1 / 255, scale), moved)
    with torch.inference_mode():
        assert torch.equal(fgsm(model, images.clone(), labels.clone(), 1 / 255, scale), moved)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(fgsm(model, images, labels, 1 / 255, scale), moved)

    def loss(shown: Tensor) -> float:
        return nn.functional.cross_entropy(model(shown), labels).item()

    assert loss(moved) > loss(images)


def test_lengths_are_read_and_named() -> None:
    assert step("8/255") == SignedStep(Fraction(8, 255))
    assert [step(each).name for each in ("1/255", "0.01", "0")] == ["fgsm_1/255", "fgsm_0.01", "fgsm_0/255"]
    for wrong, told in (("wide", "not 'wide'"), ("1/0", "not '1/0'"), ("2", "cannot be"), ("-1/255", "cannot be")):
        with pytest.raises(GlocalError, match=told):
            step(wrong)
    with pytest.raises(GlocalError, match="above 0, at most 1"):
        HiddenCentre(0)
