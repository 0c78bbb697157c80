"""A batch is augmented image by image, with timm's operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment as timm_ops

from glocal.data.augment import Augmenter
from glocal.data.chance import keys
from glocal.data.randaugment import RandAugment, _affine, _colour
from glocal.data.settings import PRESETS, Augment, augment
from glocal.errors import GlocalError

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def _images(count: int = 12, side: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("preset", PRESETS)
def test_an_image_is_augmented_alike_alone_and_in_any_batch(preset: str) -> None:
    images, key = _images(), keys(1, 2, torch.arange(12))
    augmenter = Augmenter(PRESETS[preset], MEAN, STD)
    together = augmenter(images, key)
    for i in (0, 5, 11):
        alone = augmenter(images[i : i + 1], key[i : i + 1])
        assert torch.allclose(alone[0], together[i], atol=1e-5)


def test_another_epoch_changes_the_images_and_none_changes_nothing() -> None:
    images = _images()
    deit = Augmenter(PRESETS["deit"], MEAN, STD)
    assert not torch.allclose(deit(images, keys(0, 0, torch.arange(12))), deit(images, keys(0, 1, torch.arange(12))))
    plain = Augmenter(Augment(), MEAN, STD)
    expected = (images / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    assert torch.allclose(plain(images, keys(0, 0, torch.arange(12))), expected, atol=1e-5)


def test_shifting_moves_pixels_and_invents_none() -> None:
    images = _images(200, 8)
    moved = Augmenter(Augment("pad", padding=2), (0.0,) * 3, (1 / 255,) * 3)(images, keys(0, 0, torch.arange(200)))
    padded = torch.nn.functional.pad(images, (2,) * 4).float()
    places = {
        next(
            (y, x)
            for y in range(5)
            for x in range(5)
            if torch.equal(moved[i].round(), padded[i, :, y : y + 8, x : x + 8])
        )
        for i in range(200)
    }
    assert len(places) == 25


def test_flip_and_erase_happen_as_often_as_asked() -> None:
    images = _images(600, 8)
    key = keys(0, 0, torch.arange(600))
    base = Augmenter(Augment(), MEAN, STD)(images, key)
    flipped = Augmenter(Augment(flip=0.5), MEAN, STD)(images, key)
    erased = Augmenter(Augment(erase=0.25), MEAN, STD)(images, key)
    mirrored = (flipped == base.flip(-1)).flatten(1).all(dim=1).float().mean()
    touched = (erased != base).flatten(1).any(dim=1).float().mean()
    assert abs(float(mirrored) - 0.5) < 0.07
    assert abs(float(touched) - 0.25) < 0.07


_LEVEL = 0.9  # m9
_THEIRS = {
    "invert": lambda image: timm_ops.invert(image),
    "contrast_full": lambda image: timm_ops.auto_contrast(image),
    "equalize": lambda image: timm_ops.equalize(image),
    "posterize": lambda image: timm_ops.posterize(image, *timm_ops._posterize_increasing_level_to_arg(9, {})),
    "solarize": lambda image: timm_ops.solarize(image, *timm_ops._solarize_increasing_level_to_arg(9, {})),
    "solarize_add": lambda image: timm_ops.solarize_add(image, *timm_ops._solarize_add_level_to_arg(9, {})),
    "colour": lambda image: timm_ops.color(image, 1.81),
    "contrast": lambda image: timm_ops.contrast(image, 1.81),
    "brightness": lambda image: timm_ops.brightness(image, 1.81),
    "sharpness": lambda image: timm_ops.sharpness(image, 1.81),
}


@pytest.mark.parametrize("name", _THEIRS)
def test_colour_operations_give_what_timm_gives(name: str) -> None:
    images = _images(4, 24)
    smooth = torch.nn.functional.avg_pool2d(images.float(), 3, 1, 1).round()
    rand = RandAugment.parse("rand-m9-mstd0.5-inc1", MEAN)
    ours = _colour(name, smooth, rand._numbers(torch.full((4,), _LEVEL), torch.ones(4)))
    for i in range(4):
        picture = Image.fromarray(smooth[i].permute(1, 2, 0).numpy().astype(np.uint8))
        theirs = torch.from_numpy(np.array(_THEIRS[name](picture))).permute(2, 0, 1).float()
        assert (ours[i] - theirs).abs().max() <= 2, name  # Pillow rounds in between


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        (2, lambda image: timm_ops.shear_x(image, 0.27, resample=2, fillcolor=(0, 0, 0))),
        (3, lambda image: timm_ops.shear_y(image, 0.27, resample=2, fillcolor=(0, 0, 0))),
        (4, lambda image: timm_ops.translate_x_rel(image, 0.405, resample=2, fillcolor=(0, 0, 0))),
        (5, lambda image: timm_ops.translate_y_rel(image, 0.405, resample=2, fillcolor=(0, 0, 0))),
        (1, lambda image: timm_ops.rotate(image, 27.0, resample=2, fillcolor=(0, 0, 0))),
    ],
)
def test_affine_operations_move_as_timm_moves(kind: int, theirs) -> None:
    ramp = torch.zeros(1, 3, 40, 40)
    ramp[:, :, 12:28, 14:30] = torch.arange(16).float() * 12 + 40
    ours = _affine(ramp, torch.tensor([kind]), torch.tensor([_LEVEL]), torch.ones(1), (0.0, 0.0, 0.0))[0]
    picture = Image.fromarray(ramp[0].permute(1, 2, 0).numpy().astype(np.uint8))
    expected = torch.from_numpy(np.array(theirs(picture))).permute(2, 0, 1).float()
    mass = torch.stack([_centre(each) for each in (ours, expected)])
    assert (mass[0] - mass[1]).abs().max() < 0.4
    assert (ours - expected).abs().mean() < 4  # of 255; Pillow's corners lie half a pixel off


def _centre(image: torch.Tensor) -> torch.Tensor:
    weight = image.mean(dim=0)
    rows, columns = torch.arange(40.0), torch.arange(40.0)
    return torch.stack(((weight.sum(1) * rows).sum(), (weight.sum(0) * columns).sum())) / weight.sum()


def test_augmentations_are_read_by_name_with_changes() -> None:
    assert augment("deit") == PRESETS["deit"]
    assert augment({"preset": "deit", "flip": 0}).flip == 0
    with pytest.raises(GlocalError, match="Did you mean 'deit'"):
        augment("diet")
    with pytest.raises(GlocalError, match="Did you mean 'flip'"):
        augment({"flips": 0.5})
    with pytest.raises(GlocalError, match="is not understood at"):
        RandAugment.parse("rand-m9-x", MEAN)
