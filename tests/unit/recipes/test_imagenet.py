"""ImageNet-1k, -V2, -ReaL and -A: the classes of folders, several labels, some classes only, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.data import ImageNetInfo, RealLabelsImagenet

from glocal.data.reassessed import file_name, padded, real_labels
from glocal.errors import GlocalError
from glocal.measure.real import RealTally
from glocal.measure.spoil import HiddenCentre, SignedStep
from glocal.recipes.evaluate import evaluate, evaluate_real, evaluate_spoilt
from tests.imagenet_sets import reader, write, write_folders, write_real, write_validation

WNIDS = ImageNetInfo().label_names()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one image of each class, all but the first ten as the reader knows them."""
    root = tmp_path_factory.mktemp("imagenet")
    return write_folders(root, {wnid: [n + 1 if n < 10 else n] for n, wnid in enumerate(WNIDS)})


def test_folders_by_wordnet_id_are_the_classes_in_order(whole: Path) -> None:
    figures, classes = evaluate(reader(), str(whole), 128)
    assert figures["images"] == 1000
    assert figures["top1"] == pytest.approx(99)
    assert figures["top5"] == pytest.approx(100)
    assert classes == tuple(WNIDS)


def test_a_run_with_its_classes_in_another_order_is_asked_in_its_own(whole: Path) -> None:
    names = [*WNIDS[500:], *WNIDS[:500]]  # its answer 0 is class 500
    figures, _ = evaluate(reader(names), str(whole), 128)
    assert figures["top1"] == 0
    shifted = reader(names)
    order = torch.tensor([WNIDS.index(name) for name in names]).float()
    shifted.model.answers.data = order  # pyright: ignore
    assert evaluate(shifted, str(whole), 128)[0]["top1"] == pytest.approx(99)


def test_v2_folders_are_classes_by_number(tmp_path: Path) -> None:
    root = write_folders(tmp_path, {str(n): [n if n % 4 else 0] for n in range(1000)})
    assert evaluate(reader(), str(root), 128)[0]["top1"] == pytest.approx(75.1)  # 0 is a multiple of 4 and right
    assert evaluate(reader(WNIDS), str(root), 128)[0]["top1"] == pytest.approx(75.1)
    (root / "417" / "0.JPEG").unlink()
    with pytest.raises(GlocalError, match=r"999 classes named by numbers, ImageNet-V2 has 0 to 999; .* of 417"):
        evaluate(reader(), str(root), 128)


def test_of_some_classes_only_the_answer_is_sought_among_them(tmp_path: Path) -> None:
    # 6, 11 and 13 are of ImageNet-A, 5 and 12 are not.
    root = write_folders(tmp_path / "a", {WNIDS[6]: [5, 6, 13], WNIDS[11]: [11, 12], WNIDS[13]: [600]})
    told: list[str] = []
    figures, classes = evaluate(reader(), str(root), 4, told.append)
    assert classes == (WNIDS[6], WNIDS[11], WNIDS[13])
    # By hand: 5 is nearest to 6, right; 6 right; 13 wrong; 11 right; 12 as near to 11 as to 13, the higher one wins,
    # wrong; 600 is nearest to 13, right.
    assert figures["top1"] == pytest.approx(100 * 4 / 6)
    assert figures["confusion"] == [[2, 0, 1], [0, 1, 1], [0, 0, 1]]
    assert any("3 of the model's 1000 classes; its answer is sought among these 3 only" in note for note in told)
    figures, classes = evaluate(reader(), str(root), 4, told.append, all_classes=True)
    assert len(classes) == 1000
    assert figures["top1"] == pytest.approx(100 * 2 / 6)
    assert "sought among all" in told[-1]


def test_spoilt_images_of_some_classes_are_spoilt_against_these(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "a", {WNIDS[6]: [6], WNIDS[300]: [299, 300, 400]})
    found, _ = evaluate_spoilt(reader(), str(root), 2, [HiddenCentre(), SignedStep()])
    assert list(found) == ["clean", "centre_hidden_0.5", "fgsm_1/255"]
    assert found["clean"]["top1"] == 100
    # A quarter of the area hidden: 300 reads as 225, 400 as 300. A step is one of each byte, so 257 in all: it takes 6
    # up and 299 down, to the other class. From 300 on, the reader's answers to both fall alike: there is no slope.
    assert found["centre_hidden_0.5"]["top1"] == 100
    assert found["fgsm_1/255"]["confusion"] == [[0, 1], [1, 2]]


def test_an_image_is_right_by_any_of_its_labels(tmp_path: Path) -> None:
    labels = {0: [3], 7: [5, 9], 8: [1, 2], 49_999: [700], 20: []}
    numbers = {0: 3, 7: 9, 8: 6, 49_999: 2, 20: 0, 21: 0}
    real = write_real(tmp_path / "real.json", labels)
    told: list[str] = []
    flat = write_validation(tmp_path / "flat", numbers)
    write(flat / "other.JPEG", 0)
    figures = evaluate_real(reader(), str(flat), str(real), 2, told.append)
    # Right: 3 and 9. Among five: 6 has 4 to 8 around it, but neither 1 nor 2.
    assert figures == {"images": 4, "top1": 50.0, "top5": 50.0}
    assert any("2 images without labels are left out" in note for note in told)
    assert any("1 images of other names ignored" in note for note in told)
    folders = write_validation(tmp_path / "set" / "val", {k: v for k, v in numbers.items() if k < 8}, WNIDS[0])
    write_validation(folders, {8: 4, 49_999: 2}, WNIDS[1])
    (tmp_path / "set" / "train").mkdir()
    figures = evaluate_real(reader(), str(tmp_path / "set"), str(real), 2)
    assert figures == {"images": 4, "top1": 50.0, "top5": 75.0}  # 4 has 2 to 6 around it
    named = reader([*WNIDS[500:], *WNIDS[:500]])
    named.model.answers.data = torch.arange(1000).roll(500).float()  # pyright: ignore
    assert evaluate_real(named, str(flat), str(real), 2) == {"images": 4, "top1": 50.0, "top5": 50.0}


def test_the_published_labels_count_as_timm_counts_them() -> None:
    labels = real_labels("real")
    assert (len(labels), sum(map(bool, labels))) == (50_000, 46_837)
    answers = torch.randn(400, 1000)
    for place in range(0, 400, 2):
        answers[place, (labels[place] or [0])[-1]] += 4
    theirs = RealLabelsImagenet([file_name(place) for place in range(50_000)])
    theirs.add_result(answers)
    ours = RealTally(padded(labels))
    ours.add(answers[:123], torch.arange(123))
    ours.add(answers[123:], torch.arange(123, 400))
    figures = ours.figures()
    assert figures["images"] == sum(map(bool, labels[:400]))
    assert (figures["top1"], figures["top5"]) == pytest.approx((theirs.get_accuracy(1), theirs.get_accuracy(5)))
    assert 20 < figures["top1"] < 70


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[[1], [2", "is no whole JSON file"),
        ('{"a": 1}', "holds a dict; wanted a list of 50,000 lists"),
        (json.dumps([[1]] * 49_999), "labels of 49,999 images; wanted 50,000"),
        (json.dumps([[1]] * 7 + [3] + [[]] * 49_992), "gives ILSVRC2012_val_00000008.JPEG a int; wanted a list"),
        (json.dumps([[1]] + [[1000]] + [[]] * 49_998), "ILSVRC2012_val_00000002.JPEG the label 1000; .* 0 to 999"),
        (json.dumps([[-1]] + [[]] * 49_999), "the label -1"),
        (json.dumps([["tench"]] + [[]] * 49_999), "the label 'tench'"),
        (json.dumps([[]] * 50_000), "none of the 50,000 images has a label"),
        (None, "is not a file. Take the published real.json, or `--labels real`"),
    ],
)
def test_labels_that_are_no_reassessed_labels_are_refused(tmp_path: Path, content: str | None, told: str) -> None:
    file = tmp_path / "real.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(GlocalError, match=told):
        evaluate_real(reader(), str(write_validation(tmp_path / "val", {0: 1})), str(file), 2)


def test_validation_images_that_are_not_there_are_named(tmp_path: Path) -> None:
    real = str(write_real(tmp_path / "real.json", {place: [1] for place in range(9)}))
    root = write_validation(tmp_path / "val", {1: 1})
    with pytest.raises(GlocalError, match=r"lacks 8 of the 9 .*: ILSVRC2012_val_00000001.JPEG, .* and 3 more"):
        evaluate_real(reader(), str(root), real, 2)
    write_validation(root, {1: 1}, "again")
    with pytest.raises(GlocalError, match="is there twice"):
        evaluate_real(reader(), str(root), real, 2)
    other = write_folders(tmp_path / "other", {"cat": [1, 2]})
    with pytest.raises(GlocalError, match=r"no image named as .*00000001.JPEG; it has 2 other images"):
        evaluate_real(reader(), str(other), real, 2)
    with pytest.raises(GlocalError, match="is not a folder"):
        evaluate_real(reader(), str(tmp_path / "none"), real, 2)
    with pytest.raises(GlocalError, match="has no images of its own"):
        evaluate_real(reader(), None, real, 2)


def _evaluated(names: list[str] | None, root: Path) -> Any:
    return evaluate(reader(names), str(root), 2)


def test_other_classes_than_the_models_are_refused_by_name(tmp_path: Path) -> None:
    a = write_folders(tmp_path / "a", {WNIDS[6]: [6], WNIDS[11]: [11]})
    with pytest.raises(GlocalError, match=r"only the model has dog; only .*a has n01498041"):
        _evaluated([WNIDS[11], "dog"], a)
    with pytest.raises(GlocalError, match="knows 1000 others, such as thing 0"):
        named = reader([f"thing {i}" for i in range(1000)])
        evaluate_real(named, str(a), str(write_real(tmp_path / "real.json", {0: [1]})), 2)
    with pytest.raises(GlocalError, match="only the model has thing 0, .* and 995 more; only"):
        _evaluated([f"thing {i}" for i in range(1000)], a)
    write_folders(a, {"n99999999": [1]})
    with pytest.raises(GlocalError, match="1 of 3 classes of .* are none of ImageNet-1k: n99999999"):
        _evaluated(None, a)
    with pytest.raises(GlocalError, match="the model knows 1000 classes, .*b has 2"):
        _evaluated(None, write_folders(tmp_path / "b", {"cat": [1], "dog": [2]}))


def test_a_broken_image_is_told_and_left_out(tmp_path: Path) -> None:
    real = str(write_real(tmp_path / "real.json", {0: [1], 1: [2]}))
    root = write_validation(tmp_path / "val", {0: 1, 1: 2})
    (root / file_name(1)).write_bytes(b"none")
    for memory in ("auto", "no"):
        trained, told = reader(), list[str]()
        trained = replace(trained, data=replace(trained.data, memory=memory))
        assert evaluate_real(trained, str(root), real, 2, told.append)["images"] == 1
        assert any("1 image cannot be read" in note for note in told)
