"""Average precision, F1, mIoU and robustness, against other implementations and by hand."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from glocal.measure.detection import BoxTally, coco_figures
from glocal.measure.robustness import SPOILT, robustness
from glocal.measure.segmentation import PixelTally
from glocal.measure.voc import voc_figures

Things = list[dict[str, Tensor]]


def _scenes(masks: bool = False) -> tuple[Things, Things]:
    """Make a fixed set of objects of all sizes, some of them crowds, and detections near and far from them."""
    draw = np.random.default_rng(0)
    found: Things = []
    wanted: Things = []
    for _ in range(25):
        count = int(draw.integers(0, 8))
        corner = draw.uniform(0, 150, (count, 2))
        boxes = np.concatenate((corner, corner + draw.uniform(5, 150, (count, 2))), axis=1)
        labels = draw.integers(0, 4, count)
        near = boxes + draw.normal(0, 6, boxes.shape)
        far = np.sort(draw.uniform(0, 300, (3, 2, 2)), axis=1).reshape(3, 4)
        ours = np.concatenate((near, far)).astype(np.float32)
        ours[:, 2:] = np.maximum(ours[:, 2:], ours[:, :2] + 1)
        told = np.concatenate((np.where(draw.random(count) < 0.8, labels, 0), draw.integers(0, 4, 3)))
        found.append(
            {
                "boxes": torch.tensor(ours),
                "labels": torch.tensor(told),
                "scores": torch.tensor(draw.random(len(ours)), dtype=torch.float32),
            }
        )
        wanted.append(
            {
                "boxes": torch.tensor(boxes, dtype=torch.float32),
                "labels": torch.tensor(labels),
                "hard": torch.tensor(draw.random(count) < 0.1),
            }
        )
    if masks:
        for each in (*found, *wanted):
            each["masks"] = torch.stack([_filled(box) for box in each["boxes"]] or [torch.zeros(300, 300)]).bool()
            each["masks"] = each["masks"][: len(each["boxes"])]
    return found, wanted


def _filled(box: Tensor) -> Tensor:
    mask = torch.zeros(300, 300)
    x1, y1, x2, y2 = box.clamp(0, 300).round().long().tolist()
    mask[y1 : max(y2, y1 + 1), x1 : max(x2, x1 + 1)] = 1
    mask[(y1 + y2) // 2 :, (x1 + x2) // 2 :] = 0  # not a plain box
    return mask


def _pycocotools(found: Things, wanted: Things, kind: str) -> dict[str, float]:
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    from pycocotools import mask as coder
    from pycocotools.cocoeval import COCOeval

    def entry(each: dict[str, Tensor], i: int) -> dict[str, Any]:
        x1, y1, x2, y2 = each["boxes"][i].double().tolist()
        made: dict[str, Any] = {"bbox": [x1, y1, x2 - x1, y2 - y1], "category_id": int(each["labels"][i])}
        made["area"] = (x2 - x1) * (y2 - y1)
        if "masks" in each:  # an object's size is its mask's, for boxes too, as in COCO's own files
            made["segmentation"] = coder.encode(np.asfortranarray(each["masks"][i].numpy().astype(np.uint8)))
            made["area"] = float(coder.area(made["segmentation"]))
        return made

    truth, answers = [], []
    for image, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
        for i in range(len(theirs["labels"])):
            crowd = int(theirs["hard"][i])
            truth.append(entry(theirs, i) | {"image_id": image, "iscrowd": crowd, "id": len(truth) + 1})
        for i in range(len(ours["labels"])):
            answers.append(entry(ours, i) | {"image_id": image, "score": float(ours["scores"][i])})
    with contextlib.redirect_stdout(io.StringIO()):
        whole = coco.COCO()
        images = [{"id": i, "height": 300, "width": 300} for i in range(len(found))]
        categories = [{"id": i} for i in range(4)]
        whole.dataset = {"images": images, "annotations": truth, "categories": categories, "info": {}}
        whole.createIndex()
        dropped = "bbox" if kind == "segm" else "segmentation"
        answers = [{key: value for key, value in each.items() if key != dropped} for each in answers]
        evaluation = COCOeval(whole, whole.loadRes(answers), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return dict(zip(("ap", "ap50", "ap75", "ap_s", "ap_m", "ap_l"), evaluation.stats[:6].tolist(), strict=True))


@pytest.mark.parametrize("masks", [False, True])
def test_average_precision_agrees_with_pycocotools(masks: bool) -> None:
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    found, wanted = _scenes(masks)
    figures = coco_figures(found, wanted, masks=masks)
    for start, kind in (("", "bbox"), ("mask_", "segm")) if masks else (("", "bbox"),):
        for name, value in _pycocotools(found, wanted, kind).items():
            assert figures[start + name] / 100 == pytest.approx(value, abs=1e-4), start + name
    assert 5 < figures["ap"] < 60


def test_the_tally_keeps_nothing_on_the_device_and_counts_images() -> None:
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    found, wanted = _scenes()
    tally = BoxTally(4)
    for ours, theirs in zip(found, wanted, strict=True):
        tally.add([ours], [theirs | {"size": (300, 300)}])
    figures = tally.figures()
    assert figures["images"] == 25
    assert figures["ap50"] == pytest.approx(coco_figures(found, wanted)["ap50"])
    assert abs(figures["map"] - figures["ap50"]) < 3  # VOC's area and COCO's 101 points are close, not equal


def _image(boxes: list[list[float]], labels: list[int], **rest: Any) -> dict[str, Tensor]:
    made = {"boxes": torch.tensor(boxes).reshape(-1, 4).float(), "labels": torch.tensor(labels, dtype=torch.long)}
    return made | {key: torch.tensor(value) for key, value in rest.items()}


def test_voc_figures_by_hand() -> None:
    wanted = [_image([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 0], hard=[False, False])]
    right_wrong_right = _image([[0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 30, 30]], [0, 0, 0], scores=[0.9, 0.8, 0.7])
    figures = voc_figures([right_wrong_right], wanted, 2)
    assert figures["map"] == pytest.approx(100 * (0.5 * 1 + 0.5 * 2 / 3))
    assert figures["f1"] == pytest.approx(100 * 2 * (2 / 3) / (1 + 2 / 3))
    twice = _image([[0, 0, 10, 10], [0, 0, 10, 9]], [0, 0], scores=[0.9, 0.8])
    assert voc_figures([twice], wanted, 2)["map"] == pytest.approx(50)  # a second box on one object is wrong


def test_voc_figures_pass_over_difficult_objects() -> None:
    wanted = [_image([[0, 0, 10, 10], [20, 20, 30, 30]], [0, 0], hard=[False, True])]
    both = _image([[20, 20, 30, 30], [0, 0, 10, 10]], [0, 0], scores=[0.9, 0.8])
    assert voc_figures([both], wanted, 1) == {"map": pytest.approx(100), "f1": pytest.approx(100)}


def test_nothing_found_and_nothing_there_are_figures_too() -> None:
    nothing = _image([], [], scores=[])
    nothing["scores"] = torch.zeros(0)
    there = _image([[0, 0, 9, 9]], [1], hard=[False])
    empty = _image([], [], hard=[]) | {"hard": torch.zeros(0, dtype=torch.bool)}
    assert voc_figures([nothing], [there], 2) == {"map": 0.0, "f1": 0.0}
    assert voc_figures([nothing], [empty], 2) == {"map": 0.0, "f1": 0.0}
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    assert coco_figures([nothing], [empty])["ap"] == 0.0
    assert coco_figures([nothing], [there])["ap"] == 0.0


def test_mean_overlap_agrees_with_torchmetrics_and_leaves_ignored_pixels_out() -> None:
    from torchmetrics.functional import jaccard_index

    torch.manual_seed(0)
    told, labels = torch.randint(0, 4, (3, 20, 30)), torch.randint(0, 4, (3, 20, 30))
    labels[:, :5] = 255
    tally = PixelTally(4, 255, torch.device("cpu"))
    for one, other in zip(told, labels, strict=True):
        tally.add(one, other)
    figures = tally.figures()
    expected = jaccard_index(told, labels, task="multiclass", num_classes=4, ignore_index=255)
    assert figures["miou"] == pytest.approx(100 * float(expected), abs=1e-4)
    counted = labels != 255
    assert figures["accuracy"] == pytest.approx(100 * float((told == labels)[counted].float().mean()), abs=1e-4)


def test_a_class_that_never_occurs_does_not_count() -> None:
    tally = PixelTally(5, 255, torch.device("cpu"))
    tally.add(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    assert tally.figures()["miou"] == pytest.approx(100)
    assert tally.figures()["per_class"] == [100.0, 100.0, None, None, None]


def test_spoilt_images_have_the_noise_they_are_said_to_have() -> None:
    grey = torch.full((3, 200, 200), 128, dtype=torch.uint8)
    draw = torch.Generator().manual_seed(0)
    for name, sigma in (("gaussian_noise_5", 5.0), ("gaussian_noise_10", 10.0)):
        assert float(SPOILT[name](grey, draw).float().std()) == pytest.approx(sigma, rel=0.03)
    shot = SPOILT["shot_noise"](grey, draw).float()
    assert float(shot.mean()) == pytest.approx(128, abs=1)
    assert float(shot.std()) == pytest.approx(255 * (128 / 255 / 60) ** 0.5, rel=0.05)
    point = torch.zeros(3, 41, 41, dtype=torch.uint8)
    point[:, 20, 20] = 255
    wide = [float((SPOILT[name](point, draw).float() > 0).sum()) for name in ("gaussian_blur_1", "gaussian_blur_2")]
    assert wide[1] > wide[0] > 3
    assert torch.equal(SPOILT["gaussian_blur_1"](grey, draw), grey)


def test_robustness_runs_noise_anew_and_gives_an_interval() -> None:
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (4, 3, 24, 24), dtype=torch.uint8)
    labels = (pixels.float().mean(1) > 128).long()
    found = robustness(
        lambda image: (image.float().mean(0) > 128).long(), lambda: zip(pixels, labels, strict=True), 2, 255, runs=3
    )
    by_name = {each.name: each for each in found}
    assert by_name["clean"].miou == pytest.approx(100)
    assert len(by_name["shot_noise"].runs) == 3
    assert len(set(by_name["shot_noise"].runs)) == 3
    assert by_name["shot_noise"].interval > 0
    assert by_name["gaussian_noise_10"].miou < by_name["gaussian_noise_5"].miou < 100
    assert by_name["gaussian_blur_2"].miou < by_name["gaussian_blur_1"].miou
