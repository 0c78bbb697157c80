"""Segmentation heads, and asking them about whole images or windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glocal import create_model, named
from glocal.heads.build import HEADS, put_on
from glocal.heads.draw import draw_boxes, draw_labels, palette
from glocal.heads.inference import slide, whole

SEGMENTERS = [name for name, head in HEADS.items() if head.task == "segment"]
HOSTS: dict[str, dict[str, Any]] = {
    "deit_tiny_patch16_224": {"depth": 2, "embed_dim": 24, "num_heads": 3, "img_size": (64, 96)},
    "swinv2_tiny_window8_256": {
        "embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8), "window_size": 2, "img_size": (64, 96)
    },
    "lit_tiny": {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "heads": (1, 1, 2, 2), "img_size": (64, 96)},
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
}  # fmt: skip


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("name", HOSTS)
def test_every_segmenter_on_every_kind_of_host_scores_every_pixel(name: str, head: str) -> None:
    if head == "upernet":
        pytest.importorskip("segmentation_models_pytorch", reason="UperNet's decoder comes with glocal[segment]")
    options = {} if head == "linear" else {"channels": 32}
    model = put_on(create_model(name, num_classes=0, **HOSTS[name]), head, 5, **options)
    images = torch.randn(2, 3, 64, 96)
    answer = model(images)
    first = answer[0] if isinstance(answer, tuple) else answer
    assert first.shape == (2, 5, 64, 96)
    sum(each.square().mean() for each in (answer if isinstance(answer, tuple) else (answer,))).backward()
    idle = [n for n, each in model.named_parameters() if each.grad is None]
    assert not [n for n in idle if "cls_token" not in n], idle
    with torch.no_grad():
        assert model.eval()(images).shape == (2, 5, 64, 96)


def test_life_in_the_host_changes_the_answer_of_the_segmenter() -> None:
    host = create_model("deit_tiny_patch16_224", *named("life"), num_classes=0, **HOSTS["deit_tiny_patch16_224"])
    model = put_on(host, "linear", 3).eval()
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        before = model(image)
        model.maps.host.blocks[0].attn.qkv.inner.depthwise[1].weight.add_(1.0)
        assert not torch.allclose(model(image), before)


class Bright(nn.Module):
    """Scores that do not depend on the neighbourhood, so windows must agree with the whole."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat((images, images.mean(1, keepdim=True)), dim=1)


@pytest.mark.parametrize("size", [(64, 96), (50, 70), (20, 30), (33, 200)])
def test_windows_cover_the_whole_image_and_agree_with_it(size: tuple[int, int]) -> None:
    image = torch.randn(3, *size)
    expected = Bright()(image[None])[0]
    assert torch.allclose(slide(Bright(), image, (32, 48)), expected, atol=1e-6)
    assert torch.allclose(whole(Bright(), [image])[0], expected)


def test_windows_overlap_by_averaging() -> None:
    class Place(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.arange(images.shape[-1]).float().expand(len(images), 1, *images.shape[-2:])

    scores = slide(Place(), torch.zeros(3, 4, 6), (4, 4), (4, 2))
    assert scores[0, 0].tolist() == [0, 1, (2 + 0) / 2, (3 + 1) / 2, 2, 3]


def test_images_of_odd_sizes_are_padded_for_hosts_that_want_whole_patches() -> None:
    arguments = HOSTS["deit_tiny_patch16_224"] | {"dynamic_img_size": True}
    model = put_on(create_model("deit_tiny_patch16_224", num_classes=0, **arguments), "linear", 3).eval()
    with torch.no_grad():
        answers = whole(model, [torch.randn(3, 50, 70), torch.randn(3, 64, 64)])
    assert [tuple(each.shape) for each in answers] == [(3, 50, 70), (3, 64, 64)]


def test_drawing_marks_what_was_found_and_nothing_else() -> None:
    pixels = torch.zeros(3, 60, 60, dtype=torch.uint8)
    found = {
        "boxes": torch.tensor([[10.0, 20, 40, 50], [0, 0, 5, 5]]),
        "labels": torch.tensor([1, 0]),
        "scores": torch.tensor([0.9, 0.2]),
    }
    drawn = draw_boxes(pixels, found, ("cat", "dog"))
    assert drawn[:, 50, 10:40].any()
    assert not drawn[:, :5, :5].any()
    labels = torch.zeros(60, 60, dtype=torch.long)
    labels[30:] = 1
    picture = draw_labels(pixels, labels, ("cat", "dog"), alpha=1.0)
    assert tuple(picture[:, 0, 0].tolist()) == palette(2)[0]
    assert tuple(picture[:, 59, 0].tolist()) == palette(2)[1]
    assert len(set(palette(150))) == 150
