"""Every recipe for detection and segmentation can be read, says what to expect, builds and trains."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glocal.papers import rows
from glocal.recipes.dense import DENSE, build_dense, open_dense
from glocal.recipes.find import find, listed, names
from glocal.recipes.run import accelerate, prepare
from glocal.recipes.schema import read
from glocal.train.screen import Silent
from glocal.train.settings import Recipe
from tests.dense_sets import write_camvid, write_coco, write_voc

ALL = {name: recipe for name in names() if (recipe := read(find(name))).task in DENSE}
CLASSES = {"voc": 20, "cityscapes": 19, "coco": 80, "ade20k": 150, "bccd": 3, "camvid": 11}
TINY = {"depth": 2, "embed_dim": 24, "num_heads": 3, "dynamic_img_size": True}


def _needs(recipe: Recipe) -> None:
    if recipe.head is not None and recipe.head.name == "upernet":
        pytest.importorskip("segmentation_models_pytorch", reason="UperNet's decoder comes with glocal[segment]")


@pytest.mark.parametrize("name", ALL)
def test_a_dense_recipe_names_its_command_and_what_to_expect(name: str) -> None:
    assert f"# glocal train {name} " in find(name).read_text()
    head = next(each.head for each in listed() if each.name == name)
    assert re.search(r"\d % (mAP|mIoU|AP|box AP)|No paper", head)


def test_every_dense_row_that_a_paper_trained_has_its_recipe() -> None:
    texts = {paper: "".join(find(n).read_text() for n in ALL if n.startswith(paper)) for paper in ("life", "lit", "cb")}
    own = [row for row in rows() if row.task in DENSE and "quoted" not in row.note]
    assert len(own) > 40
    for row in own:
        digits = 2 if row.paper == "life" or row.table == 9 else 1
        for column in ("map", "f1", "miou", "ap", "ap_box", "ap_mask", "miou_40k", "miou_160k", "shot_noise"):
            if column in row.metrics and (row.table != 9 or column == "shot_noise"):
                assert f"{row.metrics[column]:.{digits}f} %" in texts[row.paper], (str(row), column)


@pytest.mark.parametrize("name", ALL)
def test_a_dense_recipe_builds_its_own_model(name: str) -> None:
    recipe = ALL[name]
    _needs(recipe)
    classes = next(count for key, count in CLASSES.items() if key in name)
    with torch.device("meta"):
        model = build_dense(replace(recipe, host=replace(recipe.host, pretrained=False)), classes)
    assert sum(each.numel() for each in model.parameters()) > 5e6


def _kind(recipe: Recipe) -> str:
    assert recipe.head is not None
    return repr((recipe.head.name, recipe.optim, recipe.data.dense.fit, recipe.mechanisms))


@pytest.mark.parametrize("kind", sorted({_kind(recipe) for recipe in ALL.values()}))
def test_each_kind_of_dense_training_takes_two_steps_on_a_tiny_host(kind: str, tmp_path: Path) -> None:
    recipe = next(recipe for recipe in ALL.values() if _kind(recipe) == kind)
    _needs(recipe)
    assert recipe.head is not None
    small = {"detr": {"dim": 16, "heads": 2, "layers": 1, "hidden": 16, "queries": 5}, "linear": {}}
    few = {"dim": 8, "rpn_post_nms_top_n_train": 10, "box_batch_size_per_image": 4}
    small |= {"mask_rcnn": few, "retinanet": {"dim": 8}, "upernet": {"channels": 8}, "semantic_fpn": {"channels": 8}}
    options = small[recipe.head.name.split("-")[0]]
    write = {"mask_rcnn": write_coco}.get(recipe.head.name, write_voc if recipe.task == "detect" else write_camvid)
    dense = replace(recipe.data.dense, sides=(48, 64), longest=96, classes=())
    data = replace(recipe.data, name=str(write(tmp_path / "set")), size=64, batch_size=2, workers=0, dense=dense)
    # The tiny host has two layers; what the mechanism says of layers is of no use there.
    host = replace(recipe.host, name="vit_tiny_patch16_224", pretrained=False, arguments=TINY)
    head = replace(recipe.head, options=options, keep_context=True)
    tiny = replace(recipe, host=host, head=head, data=data, trackers=(), epochs=1, precision="fp32")
    loop = prepare(tiny, open_dense(tiny), accelerate(tiny, tmp_path), tmp_path, Silent())
    for _, parts in zip(range(2), loop.task.batches(0, 0), strict=False):
        loop._update(0, parts)
    assert loop.step == 2
    assert torch.isfinite(loop.running)
