"""Detection and segmentation runs, whole and tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glocal.errors import GlocalError
from glocal.recipes.run import run
from glocal.recipes.schema import parse
from tests.dense_sets import write_camvid, write_coco, write_voc

RECIPE = """
task: {task}
host: {{name: deit_tiny_patch16_224, depth: 2, embed_dim: 48, num_heads: 3, patch_size: 8}}
mechanisms: [{mechanism}]
head: {head}
data: {{name: {data}, size: 64, batch_size: 4, workers: 0, dense: {dense}}}
optim: {{name: adamw, lr: {lr}, weight_decay: 0.01, schedule: constant}}
epochs: {epochs}
log_every: 1
trackers: []
"""
DETECT = {"task": "detect", "dense": "{flip: 0.5}", "lr": 0.001, "epochs": 1, "mechanism": "life"}
SEGMENT = {"task": "segment", "dense": "{fit: crop, scale: [1.0, 1.5]}", "lr": 0.002, "epochs": 1, "mechanism": "life"}
DETR = "{{name: {}, options: {{dim: 32, heads: 4, layers: 2, hidden: 64, queries: 8}}}}"
FEW = (
    "{name: mask_rcnn, options: {dim: 16, rpn_post_nms_top_n_train: 20, rpn_post_nms_top_n_test: 20, "
    "box_batch_size_per_image: 8, box_detections_per_img: 5}}"
)


def _run(folder: Path, **settings: object) -> dict[str, object]:
    run(parse(RECIPE.format(**settings)), folder)
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("head", ["retinanet", "detr", "detr-linear", "detr-life"])
def test_a_detector_trains_and_is_measured(tmp_path: Path, head: str) -> None:
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    options = DETR.format(head) if head.startswith("detr") else "{name: retinanet, options: {dim: 16}}"
    metrics = _run(tmp_path / "run", head=options, data=write_voc(tmp_path / "voc"), **DETECT)
    assert {"ap", "ap50", "ap75", "map", "f1"} <= set(metrics)
    assert metrics["images"] == 4
    assert metrics["classes"] == ["blue", "red"]
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_mask_rcnn_trains_on_coco_and_measures_masks_too(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    metrics = _run(tmp_path / "run", head=FEW, data=write_coco(tmp_path / "coco"), **DETECT)
    assert {"ap", "mask_ap", "mask_ap50"} <= set(metrics)
    assert metrics["classes"] == ["red", "blue"]


@pytest.mark.parametrize("head", ["linear", "semantic_fpn", "upernet"])
def test_a_segmenter_trains_and_is_measured(tmp_path: Path, head: str) -> None:
    if head == "upernet":
        pytest.importorskip("segmentation_models_pytorch", reason="UperNet's decoder comes with glocal[segment]")
    options = "{name: linear}" if head == "linear" else f"{{name: {head}, options: {{channels: 32}}}}"
    metrics = _run(tmp_path / "run", head=options, data=write_camvid(tmp_path / "set"), **SEGMENT)
    assert metrics["classes"] == ["ground", "red", "blue"]
    assert {"miou", "accuracy", "mean_accuracy"} <= set(metrics)


def test_a_segmenter_learns_what_it_is_shown(tmp_path: Path) -> None:
    settings = SEGMENT | {"epochs": 12, "lr": 0.003}
    metrics = _run(tmp_path / "run", head="{name: linear}", data=write_camvid(tmp_path / "set", 16, 4), **settings)
    assert float(str(metrics["miou"])) > 60  # everything called ground: 27


def test_mask_rcnn_on_boxes_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match="mask_rcnn learns masks, but 8 images have none"):
        _run(tmp_path / "run", head="{name: mask_rcnn}", data=write_voc(tmp_path / "voc"), **DETECT)


def test_a_head_for_another_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GlocalError, match="unknown head 'linear' for task detect"):
        _run(tmp_path / "run", head="{name: linear}", data=write_voc(tmp_path / "voc"), **DETECT)
