"""Images with boxes and label maps: what is read, and what is done about what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glocal.data.dense import Boxed, Dense, DensePair
from glocal.data.dense_feed import DenseFeed
from glocal.data.detection import load_detection
from glocal.data.order import Order
from glocal.data.segmentation import CITYSCAPES, load_segmentation
from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from tests.dense_sets import scene, write_camvid, write_coco, write_voc, write_xml


def _settings(root: Path, **dense: Any) -> DataSettings:
    return DataSettings(name=str(root), batch_size=2, workers=0, dense=Dense(**dense), size=64)


def _feed(pair: DensePair, settings: DataSettings, masks: bool = False, size: tuple[int, int] = (64, 64)) -> DenseFeed:
    order = Order(len(pair.train), settings.batch_size, seed=3)
    return DenseFeed(pair, settings, order, torch.device("cpu"), size, masks)


def _boxes(pair: DensePair, index: int) -> Boxed:
    sample = pair.train.samples[index]
    assert isinstance(sample, Boxed)
    return sample


def test_voc_boxes_are_where_they_were_drawn(tmp_path: Path) -> None:
    pair = load_detection(_settings(write_voc(tmp_path)))
    assert (len(pair.train), len(pair.val), pair.train.classes) == (8, 4, ("blue", "red"))
    for index in range(8):
        _, things = scene(index)
        assert _boxes(pair, index).boxes.tolist() == [corners for _, corners in things]
        assert _boxes(pair, index).labels.tolist() == [1, 0]


def test_coco_and_voc_of_the_same_scenes_agree(tmp_path: Path) -> None:
    voc = load_detection(_settings(write_voc(tmp_path / "voc"), classes=("red", "blue")))
    coco = load_detection(_settings(write_coco(tmp_path / "coco")))
    for index in range(8):
        assert torch.equal(_boxes(voc, index).boxes, _boxes(coco, index).boxes)
        assert torch.equal(_boxes(voc, index).labels, _boxes(coco, index).labels)


def test_bad_boxes_are_named_and_mended(tmp_path: Path) -> None:
    root = write_voc(tmp_path)
    bad = [("red", [10, 10, 10, 30]), ("red", [70, 70, 90, 90]), ("blue", [50, 50, 80, 60]), ("red", [1, 2, 20, 20])]
    write_xml(root / "Annotations" / "000.xml", bad)
    write_xml(root / "Annotations" / "001.xml", [])
    pair = load_detection(_settings(root))
    assert _boxes(pair, 0).boxes.tolist() == [[50, 50, 64, 60], [1, 2, 20, 20]]
    assert not len(_boxes(pair, 1).boxes)
    notes = " | ".join(pair.notes)
    assert "1 boxes without area left out: 000.png" in notes
    assert "1 boxes wholly outside their image left out: 000.png" in notes
    assert "1 boxes that reach outside their image cut to it: 000.png" in notes
    assert "1 images hold no object; they are kept" in notes
    for epoch in range(3):  # and none of it stops a run
        for parts in _feed(pair, _settings(root)).train(epoch):
            assert len(parts[0][0]) == 2


def test_reading_leaves_the_random_generators_alone(tmp_path: Path) -> None:
    settings = _settings(write_voc(tmp_path))
    feed = _feed(load_detection(settings), settings)
    before = torch.get_rng_state()
    list(feed.train(0, start=1))
    list(feed.val())
    assert torch.equal(torch.get_rng_state(), before)  # or a run resumed within an epoch would draw other numbers


def test_missing_and_broken_files_are_named_and_left_out(tmp_path: Path) -> None:
    root = write_voc(tmp_path)
    (root / "Annotations" / "000.xml").unlink()
    (root / "Annotations" / "001.xml").write_text("<annotation><object>")
    (root / "JPEGImages" / "002.png").write_bytes(b"no image")
    pair = load_detection(_settings(root))
    assert len(pair.train) == 5
    assert "3 images cannot be used: 000 (000.xml is missing), 001 (001.xml is not whole), 002" in pair.notes[0]
    with pytest.raises(GlocalError, match="At most 2 may be left out"):
        load_detection(replace(_settings(root), unreadable=2))


def test_objects_of_other_classes_are_left_out_and_told(tmp_path: Path) -> None:
    pair = load_detection(_settings(write_voc(tmp_path), classes=("red",)))
    assert "12 objects of class 'blue', which is not among the classes, left out" in pair.notes[0]
    assert _boxes(pair, 0).labels.tolist() == [0]


def test_difficult_objects_are_not_learned_but_kept_for_evaluation(tmp_path: Path) -> None:
    root = write_voc(tmp_path)
    for index in (0, 8):
        write_xml(root / "Annotations" / f"{index:03}.xml", scene(index)[1], difficult=1)
    pair = load_detection(_settings(root, flip=0.0))
    feed = _feed(pair, _settings(root, flip=0.0))
    seen = [target for parts in feed.train(0) for target in parts[0][1]]
    assert sorted(len(target["boxes"]) for target in seen) == [0, *[2] * 7]
    first = next(iter(feed.val()))[1][0]
    assert first["hard"].tolist() == [True, True]
    assert len(first["boxes"]) == 2


def test_an_image_broken_in_the_middle_of_a_run_gives_its_place_to_the_next(tmp_path: Path) -> None:
    root = write_voc(tmp_path)
    settings = replace(_settings(root), memory="no")
    pair = load_detection(settings)
    whole = (root / "JPEGImages" / "003.png").read_bytes()
    (root / "JPEGImages" / "003.png").write_bytes(whole[: len(whole) // 2])
    feed, told = _feed(pair, settings), []
    feed.skipped.tell = told.append
    assert sum(len(parts[0][0]) for parts in feed.train(0)) == 8
    assert told == ["1 image cannot be read: 003.png; skipped"]


def test_boxes_masks_and_pixels_move_together(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval", reason="outlines come with glocal[detect]")
    settings = _settings(write_coco(tmp_path), flip=0.5, zoom=1.0)
    pair = load_detection(settings)
    feed = _feed(pair, settings, masks=True, size=(96, 80))
    mean, std = (torch.tensor(each)[:, None, None] for each in (pair.train.mean, pair.train.std))
    looked = 0
    for epoch in range(4):
        for parts in feed.train(epoch):
            for image, target in zip(*parts[0], strict=True):
                pixels = image * std + mean
                for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
                    rows, columns = torch.nonzero(mask, as_tuple=True)
                    if len(rows) < 40:
                        continue
                    around = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                    assert (around - box).abs().max() <= 2.5
                    strong = 0 if label == 0 else 2  # red or blue
                    assert pixels[:, mask > 0].mean(dim=1).argmax() == strong
                    looked += 1
    assert looked > 40


def test_the_same_epoch_gives_the_same_images_from_any_step(tmp_path: Path) -> None:
    settings = _settings(write_camvid(tmp_path), fit="crop", jitter=0.3)
    pair = load_segmentation(settings)
    first = list(_feed(pair, settings).train(5))
    later = list(_feed(pair, settings).train(5, start=2))
    assert len(later) == len(first) - 2
    for one, other in zip(first[2:], later, strict=True):
        assert torch.equal(torch.stack(one[0][0]), torch.stack(other[0][0]))
        assert torch.equal(one[0][1][0]["labels"], other[0][1][0]["labels"])


def test_label_maps_move_with_their_pixels_and_padding_is_ignored(tmp_path: Path) -> None:
    settings = _settings(write_camvid(tmp_path), fit="crop", scale=(0.5, 1.0), flip=0.5)
    pair = load_segmentation(settings)
    assert (pair.train.classes, pair.train.ignore) == (("ground", "red", "blue"), 3)
    mean, std = (torch.tensor(each)[:, None, None] for each in (pair.train.mean, pair.train.std))
    padded = 0
    for parts in _feed(pair, settings).train(0):
        for image, target in zip(*parts[0], strict=True):
            pixels, labels = image * std + mean, target["labels"]
            assert labels.shape == image.shape[-2:]
            for label, strong in ((1, 0), (2, 2)):
                if (labels == label).sum() > 20:
                    assert pixels[:, labels == label].mean(dim=1).argmax() == strong
            padded += int((labels == 3).float().mean() > 0.2)
    assert padded


def _write(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def test_deep_greys_are_scaled_to_bytes_here_too(tmp_path: Path) -> None:
    root = write_camvid(tmp_path)
    for image in (root / "train").iterdir():
        _write(image, np.full((64, 64), 128 * 257, np.uint16))
    settings = _settings(root)
    pair = load_segmentation(settings)
    mean, std = (torch.tensor(each)[:, None, None] for each in (pair.train.mean, pair.train.std))
    image = next(_feed(pair, settings).train(0))[0][0][0]
    assert torch.allclose(image * std + mean, torch.tensor(128 / 255), atol=1e-5)


def test_a_mask_of_another_size_a_missing_one_and_odd_values_are_named(tmp_path: Path) -> None:
    root = write_camvid(tmp_path)
    _write(root / "trainannot" / "000.png", np.zeros((32, 64), np.uint8))
    (root / "trainannot" / "001.png").unlink()
    odd = np.zeros((64, 64), np.uint8)
    odd[:4] = 77
    _write(root / "trainannot" / "002.png", odd)
    settings = _settings(root)
    pair = load_segmentation(settings)
    assert len(pair.train) == 6
    assert "000.png (64x64, its label map 64x32), 001.png (no label map 001.png)" in pair.notes[0]
    assert "1 label maps with value 77, which is no class; such pixels are ignored: 002.png" in pair.notes[1]
    feed, told = _feed(pair, settings), []
    feed.skipped.tell = told.append
    values = {value for parts in feed.train(0) for t in parts[0][1] for value in t["labels"].unique().tolist()}
    assert values == {0, 1, 2, 3}
    assert told == ["002.png holds label 77, which is no class; such pixels are ignored"]


def test_other_classes_than_said_and_colours_for_labels_are_refused(tmp_path: Path) -> None:
    root = write_camvid(tmp_path)
    with pytest.raises(GlocalError, match="8 of 8 label maps hold values that are no class, such as 2"):
        load_segmentation(_settings(root, classes=("ground", "red")))
    _write(root / "trainannot" / "000.png", np.zeros((64, 64, 3), np.uint8))
    with pytest.raises(GlocalError, match="is a colour image"):
        load_segmentation(_settings(root))


def test_cityscapes_and_ade20k_numbers_become_classes(tmp_path: Path) -> None:
    labels = np.zeros((16, 16), np.uint8)
    labels[:8] = 7  # road
    labels[8:12] = 33  # bicycle
    for part in ("train", "val"):
        folder = tmp_path / "city"
        _write(folder / "leftImg8bit" / part / "x" / "x_1_leftImg8bit.png", np.zeros((16, 16, 3), np.uint8))
        _write(folder / "gtFine" / part / "x" / "x_1_gtFine_labelIds.png", labels)
    settings = replace(_settings(tmp_path / "city", flip=0.0), batch_size=1)
    pair = load_segmentation(settings)
    assert pair.train.classes == tuple(CITYSCAPES.values())
    target = next(iter(_feed(pair, settings, size=(16, 16)).val()))[1][0]["labels"]
    assert target[0, 0] == 0
    assert target[9, 0] == 18
    assert target[15, 0] == 255
    for part in ("training", "validation"):
        _write(tmp_path / "ade" / "images" / part / "a.jpg", np.zeros((16, 16, 3), np.uint8))
        _write(
            tmp_path / "ade" / "annotations" / part / "a.png", np.arange(16, dtype=np.uint8).repeat(16).reshape(16, 16)
        )
    settings = replace(_settings(tmp_path / "ade", classes=tuple(map(str, range(15)))), batch_size=1)
    target = next(iter(_feed(load_segmentation(settings), settings, size=(16, 16)).val()))[1][0]["labels"]
    assert target[:, 0].tolist() == [255, *range(15)]
    unnamed = load_segmentation(replace(settings, dense=Dense()))
    assert unnamed.train.classes == unnamed.val.classes == tuple(f"class {i}" for i in range(15))


def test_a_folder_of_no_known_layout_is_refused(tmp_path: Path) -> None:
    for load in (load_detection, load_segmentation):
        with pytest.raises(GlocalError, match=r"VOC"):
            load(_settings(tmp_path))
        with pytest.raises(GlocalError, match="does not exist|is no folder"):
            load(_settings(tmp_path / "nowhere"))


def test_coco_without_validation_or_with_broken_json_is_refused(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    (root / "annotations" / "instances_val2017.json").write_text("{")
    with pytest.raises(GlocalError, match="cannot be read as JSON"):
        load_detection(_settings(root))
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps({"images": []}))
    with pytest.raises(GlocalError, match="lacks annotations, categories"):
        load_detection(_settings(root))
    (root / "annotations" / "instances_val2017.json").unlink()
    with pytest.raises(GlocalError, match="none for validation"):
        load_detection(_settings(root))
