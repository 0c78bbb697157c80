"""Detection and segmentation runs, whole and tiny."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from glocal.cli import app
from glocal.errors import GlocalError
from glocal.recipes.dense import build_dense, open_dense
from glocal.recipes.dense_trained import evaluate_dense, predict_dense
from glocal.recipes.run import run
from glocal.recipes.schema import parse
from glocal.store import read_recipe, write
from glocal.train.optim import groups
from glocal.train.tasks.segment import Segment
from glocal.train.unpack import unpack
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
    assert evaluate_dense(str(tmp_path / "run"))[0]["miou"] == pytest.approx(metrics["miou"], abs=1e-4)
    if head == "linear":  # the same of a checkpoint, in the folder of a run that was stopped
        (tmp_path / "run" / "model.safetensors").unlink()
        (tmp_path / "run" / "metrics.json").unlink()
        assert unpack(tmp_path / "run" / "checkpoints" / "last.pt", tmp_path / "run" / "last.safetensors")
        figures, classes = evaluate_dense(str(tmp_path / "run" / "last.safetensors"))
        assert figures["miou"] == pytest.approx(metrics["miou"], abs=1e-4)
        assert list(classes) == metrics["classes"]


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


def test_a_host_that_cannot_take_the_size_is_refused_before_data_and_folders_are_touched(tmp_path: Path) -> None:
    text = RECIPE.format(head="{name: semantic_fpn}", data=tmp_path / "gone", **(SEGMENT | {"mechanism": "cb"}))
    host = text[text.index("host: ") : text.index("mechanisms")]
    small = text.replace(host, "host: {name: pvt_v2_b0}\n").replace("size: 64", "size: 20")
    with pytest.raises(GlocalError, match="pvt_v2_b0 with the head semantic_fpn cannot take images of 20x20 pixels"):
        run(parse(small), tmp_path / "run")
    for fit in ("fit", "eval_fit"):
        odd = DETECT | {"dense": f"{{{fit}: shorter, sides: [80], longest: 120}}"}
        with pytest.raises(GlocalError, match="was built for another image size"):
            run(parse(RECIPE.format(head="{name: retinanet}", data=tmp_path / "gone", **odd)), tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dim", "told"),
    [("wide", "cannot be put on .* with dim=wide: .* Change head.options"), (0, "Mend .* head.options")],
)
def test_options_a_head_cannot_be_made_with_are_refused(tmp_path: Path, dim: object, told: str) -> None:
    head = f"{{name: retinanet, options: {{dim: {dim}}}}}"
    with pytest.raises(GlocalError, match=told):
        _run(tmp_path / "run", head=head, data=tmp_path / "gone", **DETECT)
    assert not list(tmp_path.iterdir())


def test_what_dense_tasks_do_not_know_is_refused(tmp_path: Path) -> None:
    text = RECIPE.format(head="{name: linear}", data=write_camvid(tmp_path / "set"), **SEGMENT)
    with pytest.raises(GlocalError, match="mix and distill are for task classify"):
        run(parse(text + "mix: {smoothing: 0.1}\n"), tmp_path / "mix")
    with pytest.raises(GlocalError, match="segmentation trains on 'crop'"):
        run(parse(text.replace("fit: crop", "fit: shorter")), tmp_path / "shorter")
    slides = RECIPE.format(head="{name: detr}", data="gone", **(DETECT | {"dense": "{eval_fit: slide}"}))
    with pytest.raises(GlocalError, match="detectors take 'square' or 'shorter'"):
        run(parse(slides), tmp_path / "slide")
    with pytest.raises(GlocalError, match="task segment needs a head"):
        run(parse(text.replace("head: {name: linear}", "")), tmp_path / "none")
    pytest.importorskip("segmentation_models_pytorch", reason="UperNet's decoder comes with glocal[segment]")
    single = text.replace("name: linear", "name: upernet").replace("batch_size: 4", "batch_size: 1")
    with pytest.raises(GlocalError, match="UperNet normalises over the images of a batch"):
        run(parse(single), tmp_path / "single")


def test_a_detector_is_not_trained_on_nothing(tmp_path: Path) -> None:
    settings = DETECT | {"dense": "{classes: [green, pink]}"}
    with pytest.raises(GlocalError, match="no training image of .* holds an object of class green, pink"):
        _run(tmp_path / "run", head="{name: retinanet}", data=write_voc(tmp_path / "voc"), **settings)


def test_a_voc_folder_without_lists_is_parted_by_itself(tmp_path: Path) -> None:
    for listing in write_voc(tmp_path / "voc").glob("ImageSets/Main/*.txt"):
        listing.unlink()
    pair = open_dense(parse(RECIPE.format(head="{name: detr}", data=tmp_path / "voc", **DETECT)))
    assert (len(pair.train), len(pair.val)) == (10, 2)


def _losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def _command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def test_a_segmentation_run_is_evaluated_drawn_and_spoilt(tmp_path: Path) -> None:
    data = write_camvid(tmp_path / "set", 16, 3)
    metrics = _run(tmp_path / "run", head="{name: linear}", data=data, **(SEGMENT | {"epochs": 12, "lr": 0.003}))
    rows = json.loads(_command("eval", tmp_path / "run", "--format", "json", "--per-class"))
    again = {row["measure"]: row["value"] for row in rows}
    assert again["miou"] == pytest.approx(metrics["miou"], abs=1e-4)
    spoilt = json.loads(_command("eval", tmp_path / "run", "--format", "json", "--spoilt", 2))
    assert [row["name"] for row in spoilt][:2] == ["clean", "shot_noise"]
    assert spoilt[0]["miou"] == pytest.approx(metrics["miou"], abs=1e-4)
    image = data / "val" / "016.png"
    _command("predict", tmp_path / "run", image, "-o", tmp_path / "drawn")
    drawn = np.asarray(Image.open(tmp_path / "drawn" / "016.png"))
    assert drawn.shape[1] > 64  # the names of the colours stand beside
    assert (drawn[:, :64][:64] != np.asarray(Image.open(image))).any()


def test_a_detection_run_is_evaluated_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
    data = write_voc(tmp_path / "voc")
    metrics = _run(tmp_path / "run", head=DETR.format("detr-life"), data=data, **DETECT)
    rows = json.loads(_command("eval", tmp_path / "run", "--format", "json"))
    assert {row["measure"]: row["value"] for row in rows}["f1"] == pytest.approx(metrics["f1"], abs=1e-4)
    image = data / "JPEGImages" / "009.png"
    told = _command("predict", tmp_path / "run", image, "-o", tmp_path / "drawn", "--least", 0)
    assert "red" in told or "blue" in told
    assert (np.asarray(Image.open(tmp_path / "drawn" / "009.png")) != np.asarray(Image.open(image))).any()


def test_every_image_gets_a_picture_of_its_own_where_there_is_room_for_it(tmp_path: Path) -> None:
    data = write_camvid(tmp_path / "set")
    _run(tmp_path / "run", head="{name: linear}", data=data, **SEGMENT)
    pixels = Image.open(data / "val" / "008.png")
    for name in ("a/008.png", "b/008.jpg", "b/008.PNG"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pixels.save(tmp_path / name)
    rows, broken = predict_dense(str(tmp_path / "run"), sorted(tmp_path.glob("[ab]/*")), tmp_path / "drawn")
    assert not broken
    assert len({row["image"] for row in rows}) == 3
    assert sorted(each.name for each in (tmp_path / "drawn").iterdir()) == ["008-2.png", "008-3.png", "008.png"]
    (tmp_path / "file").write_text("mine")
    assert _command("eval", tmp_path / "run" / "model.safetensors") == _command("eval", tmp_path / "run")
    with pytest.raises(GlocalError, match=r"file.* cannot be written: .* Choose another folder with -o"):
        predict_dense(str(tmp_path / "run"), [data / "val" / "008.png"], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_is_not_finished_is_refused_by_eval_and_predict(tmp_path: Path) -> None:
    text = RECIPE.format(head="{name: linear}", data=write_camvid(tmp_path / "set"), **SEGMENT)
    run(parse(text), tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    file = tmp_path / "run" / "model.safetensors"
    recipe = read_recipe(file)
    recipe.pop("facts")  # as where only the weights were copied
    write(load_file(file), recipe, file)
    with pytest.raises(GlocalError, match="neither model.safetensors nor .*metrics.json names the classes"):
        evaluate_dense(str(tmp_path / "run"))
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(GlocalError, match=r"holds no model.safetensors. Finish it"):
        predict_dense(str(tmp_path / "run"), [tmp_path / "set" / "val" / "008.png"], tmp_path / "drawn")
    assert not (tmp_path / "drawn").exists()


def test_a_host_can_start_from_another_run(tmp_path: Path) -> None:
    data = write_camvid(tmp_path / "set")
    first = run(parse(RECIPE.format(head="{name: linear}", data=data, **SEGMENT)), tmp_path / "first").model
    head = f"{{name: semantic_fpn, options: {{channels: 32}}, backbone: {tmp_path / 'first'}}}"
    second = build_dense(parse(RECIPE.format(head=head, data=data, **SEGMENT)), 3)
    ours, theirs = second.state_dict(), first.state_dict()
    taken = [name for name in theirs if name.startswith("maps.host.blocks.")]
    assert taken
    assert all(torch.equal(ours[f"pyramid.{name}"], theirs[name].cpu()) for name in taken)
    with pytest.raises(GlocalError, match="Is it the same host"):
        other = RECIPE.replace("depth: 2, embed_dim: 48", "depth: 2, embed_dim: 24")
        build_dense(parse(other.format(head=head, data=data, **SEGMENT)), 3)


def test_the_host_learns_at_its_own_rate() -> None:
    recipe = parse(RECIPE.format(head="{name: linear, host_lr: 0.1}", data="nowhere", **SEGMENT))
    model = build_dense(recipe, 3)
    rates = {id(each): group["lr_scale"] for group in groups(model, recipe.optim) for each in group["params"]}
    for name, each in model.named_parameters():
        assert rates[id(each)] == (0.1 if ".host." in name else 1.0), name


def test_a_run_stopped_in_the_middle_of_an_epoch_ends_as_if_it_had_not(tmp_path: Path) -> None:
    text = RECIPE.format(head="{name: linear}", data=write_camvid(tmp_path / "set"), **(SEGMENT | {"epochs": 2}))
    whole = run(parse(text), tmp_path / "whole").model
    recipe = parse(text + "save: {every_steps: 3}\n")
    with pytest.raises(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
        loss, calls = Segment.loss, []

        def stumbling(*args: Any) -> Any:
            calls.append(1)
            return loss(*args) if len(calls) < 4 else 1 / 0

        patch.setattr(Segment, "loss", stumbling)
        run(recipe, tmp_path / "cut")
    resumed = run(recipe, tmp_path / "cut", resume=True).model
    for name, each in whole.state_dict().items():
        assert torch.equal(each, resumed.state_dict()[name]), name


@pytest.mark.parametrize("task", ["detect", pytest.param("segment", marks=pytest.mark.slow)])
def test_two_processes_learn_and_measure_as_one(tmp_path: Path, task: str) -> None:
    if task == "detect":
        pytest.importorskip("faster_coco_eval", reason="average precision comes with glocal[detect]")
        settings = DETECT | {"head": "{name: retinanet, options: {dim: 8}}", "data": write_voc(tmp_path / "set", 8, 5)}
    else:
        # Crops would leave each process another number of pixels to average over.
        settings = SEGMENT | {"dense": "{flip: 0.5}", "head": "{name: linear}"}
        settings["data"] = write_camvid(tmp_path / "set", 8, 5)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(**settings))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "glocal"]
    command += ["train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    run(parse(RECIPE.format(**settings)), tmp_path / "one")
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert one["images"] == two["images"] == 5
    assert _losses(tmp_path / "two") == pytest.approx(_losses(tmp_path / "one"), rel=1e-4)
    best = {"detect": "ap", "segment": "miou"}[task]
    assert two[best] == pytest.approx(one[best], abs=0.5)
