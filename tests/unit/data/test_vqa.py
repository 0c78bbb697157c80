"""VQAv2's files: what is read, and what is done about what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from glocal.data.order import Order
from glocal.data.question_feed import QuestionFeed, changes
from glocal.data.questions import KINDS, QuestionPair, Vqa
from glocal.data.settings import Augment, DataSettings
from glocal.data.sight import Sight
from glocal.data.vqa import load_measured, load_vqa
from glocal.errors import GlocalError
from tests.question_sets import annotation, write_vqa

QUESTIONS, ANSWERS = "v2_OpenEnded_mscoco_{}2014_questions.json", "v2_mscoco_{}2014_annotations.json"


def _settings(root: Path, least: int = 2, **more: Any) -> DataSettings:
    return DataSettings(name=str(root), batch_size=4, workers=0, vqa=Vqa(least), **more)


def _change(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    read = json.loads(path.read_text())
    change(read)
    path.write_text(json.dumps(read))


def _words(question: str) -> list[int]:
    return [len(word) for word in question.split()]


def _feed(pair: QuestionPair, settings: DataSettings) -> QuestionFeed:
    order = Order(len(pair.train), settings.batch_size, seed=3)
    return QuestionFeed(pair, settings, order, torch.device("cpu"), Sight(32, 8), _words)


def test_questions_images_answers_and_kinds_are_read(tmp_path: Path) -> None:
    pair = load_vqa(_settings(write_vqa(tmp_path)))
    assert (len(pair.train), len(pair.val), pair.notes) == (24, 12, ())
    assert pair.train.classes == (
        "1",
        "blue",
        "no",
        "red",
        "yes",
    )  # eight ones; of the others four, in order of letters
    first = pair.train.samples[0]
    assert (first.image.name, first.text) == ("COCO_train2014_000000000000.jpg", "What color is the block?")
    assert first.answers == ((3, 1.0),)  # "unsure" is no answer that can be given
    assert [KINDS[each.kind] for each in pair.train.samples[:3]] == ["other", "yes/no", "number"]
    assert pair.val.samples[0].image.name == "COCO_val2014_000000000008.jpg"


def test_only_answers_that_are_common_enough_are_learned(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    _change(root / ANSWERS.format("train"), lambda read: read["annotations"].append(annotation(99, 0, ["3"] * 10, "")))
    extra = {"image_id": 0, "question": "How?", "question_id": 99}
    _change(root / QUESTIONS.format("train"), lambda read: read["questions"].append(extra))
    pair = load_vqa(_settings(root))
    assert "3" not in pair.train.classes
    assert pair.notes == ("1 of 25 training questions have none of the 5 answers learned; left out",)
    assert "3" in load_vqa(_settings(root, least=1)).train.classes
    assert len(load_vqa(_settings(root, limit=5)).train) == 5
    with pytest.raises(
        GlocalError, match=r"1 answers of .* stand at 8 training questions.*'1', 8 times.*data.vqa.least"
    ):
        load_vqa(_settings(root, least=8))


def test_both_parts_may_be_learned_and_some_images_held_out(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    settings = _settings(root, train_split="train+val", holdout=0.25)
    pair = load_vqa(settings)
    assert (len(pair.train), len(pair.val)) == (27, 9)
    learned, measured = ({each.image for each in part.samples} for part in (pair.train, pair.val))
    assert not learned & measured
    assert load_measured(settings, pair.train.classes)[0].samples == pair.val.samples
    assert len(load_measured(settings, pair.train.classes, whole=True)[0]) == 36
    named = replace(settings, eval_split="val2014")
    assert len(load_vqa(named).val) == 12
    assert load_vqa(replace(settings, train_split="train2014", holdout=0.5)).train.samples[0].text


def test_missing_images_are_named_and_counted(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    (root / "train2014" / "COCO_train2014_000000000003.jpg").unlink()
    pair = load_vqa(_settings(root))
    assert len(pair.train) == 21
    assert pair.notes == ("1 image cannot be used: COCO_train2014_000000000003.jpg (missing); left out",)
    with pytest.raises(GlocalError, match="At most 0 may be left out"):
        load_vqa(_settings(root, unreadable=0))
    (root / "val2014").rename(root / "elsewhere")
    with pytest.raises(GlocalError, match=r"none of the 4 images that .*val2014_questions.* asks about.*Put them into"):
        load_vqa(_settings(root))


def test_images_are_found_where_they_usually_lie(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    (root / "images").mkdir()
    (root / "train2014").rename(root / "images" / "train2014")
    for file in (root / "val2014").iterdir():
        file.rename(root / "images" / file.name.removeprefix("COCO_val2014_"))  # as later editions of COCO call them
    pair = load_vqa(_settings(root))
    assert (len(pair.train), len(pair.val)) == (24, 12)


def test_questions_without_answers_are_left_out_or_refused(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    _change(root / ANSWERS.format("train"), lambda read: read["annotations"].pop(1))
    pair = load_vqa(_settings(root))
    assert len(pair.train) == 23
    assert "1 questions of" in pair.notes[0] and "left out: question 1" in pair.notes[0]
    (root / ANSWERS.format("train")).write_text((root / ANSWERS.format("val")).read_text())
    with pytest.raises(GlocalError, match=r"24 questions of .* without answers in .*Do the two files belong together"):
        load_vqa(_settings(root))


def test_files_of_another_kind_are_told(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    questions, answers = root / QUESTIONS.format("train"), root / ANSWERS.format("train")
    whole = answers.read_text()
    for text, told in (
        ('{"images": [], "categories": []}', "has no list of annotations, but the keys images, categories"),
        ("[]", "has no list of annotations, but a list"),
        ("{", "cannot be read as JSON"),
        ('{"annotations": [{"image_id": 3}]}', "entry 0 of annotations lacks question_id, answers"),
        (whole.replace('"answer":', '"text":'), "question 0 are .* a list of entries with the key 'answer'"),
    ):
        answers.write_text(text)
        with pytest.raises(GlocalError, match=told):
            load_vqa(_settings(root))
    answers.unlink()
    with pytest.raises(GlocalError, match=r"no annotations for train.* beside v2_OpenEnded_mscoco_train2014_questions"):
        load_vqa(_settings(root))
    questions.unlink()
    with pytest.raises(GlocalError, match="no questions and annotations for train"):
        load_vqa(_settings(root))
    with pytest.raises(GlocalError, match="is no folder"):
        load_vqa(_settings(tmp_path / "gone"))


def test_questions_that_nobody_answered_are_no_part_to_measure_on(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    (root / ANSWERS.format("val")).unlink()  # as of VQAv2's test part
    pair = load_vqa(_settings(root))
    assert (len(pair.train), len(pair.val)) == (18, 6)  # two of eight images
    with pytest.raises(GlocalError, match="no annotations for val"):
        load_vqa(_settings(root, eval_split="val"))


def test_a_set_of_ones_own_may_say_less(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    for part in ("train", "val"):
        (root / part).mkdir()
        _change(root / QUESTIONS.format(part), lambda read: read.pop("data_subtype"))
        (root / QUESTIONS.format(part)).rename(root / part / "questions.json")
        (root / f"{part}2014").rename(root / part / part)
        _change(root / ANSWERS.format(part), lambda read: [_shortened(each) for each in read["annotations"]])
        (root / ANSWERS.format(part)).rename(root / part / "annotations.json")
        for file in (root / part / part).iterdir():
            file.rename(file.with_name(file.name.replace("2014", "")))
    pair = load_vqa(_settings(root))
    assert (len(pair.train), len(pair.val)) == (24, 12)
    assert pair.train.samples[0].answers == ((3, 1.0),)
    assert {KINDS[each.kind] for each in pair.val.samples} == {"other"}


def _shortened(entry: dict[str, Any]) -> None:
    del entry["multiple_choice_answer"], entry["answer_type"]
    entry["answers"] = [{"answer": each["answer"]} for each in entry["answers"][:3]]


def test_the_first_edition_may_lie_beside(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    (root / "OpenEnded_mscoco_train2014_questions.json").write_text("{}")
    (root / "mscoco_train2014_annotations.json").write_text("{}")
    assert len(load_vqa(_settings(root)).train) == 24


@pytest.mark.parametrize(
    ("given", "fitted"),
    [((480, 640), (384, 512)), ((640, 480), (512, 384)), ((500, 500), (384, 384)), ((200, 1000), (128, 608))],
)
def test_an_image_keeps_its_shape_within_whole_patches(given: tuple[int, int], fitted: tuple[int, int]) -> None:
    assert Sight(384, 32).fit(*given) == fitted
    assert Sight((384, 608), 32).fit(*given) == (384, 608)


def test_batches_are_the_same_from_any_step_and_masks_tell_what_is_filled_up(tmp_path: Path) -> None:
    pair = load_vqa(_settings(write_vqa(tmp_path)))
    feed = _feed(pair, _settings(tmp_path, augment=Augment(rand="rand-m9-n2-p1.0", flip=0.5)))
    whole, late = list(feed.train(1)), list(feed.train(1, 4))
    for first, second in zip(whole[4:], late, strict=True):
        (inputs, wanted, kinds), (again, *_) = first[0], second[0]
        for key, each in inputs.items():
            assert torch.equal(each, again[key]), key
        assert wanted.shape == (4, 5)
        assert kinds.shape == (4,)
        assert bool((inputs["pixel_values"] * (1 - inputs["pixel_mask"])[:, None] == 0).all())
        assert (inputs["pixel_mask"].sum(dim=(1, 2)) == 32 * 48).all()
        assert ((inputs["input_ids"] > 0) == (inputs["attention_mask"] == 1)).all()
    other = next(feed.train(2))[0][0]["pixel_values"]
    assert other.shape != whole[0][0][0]["pixel_values"].shape or not torch.equal(other, whole[0][0][0]["pixel_values"])


def test_images_that_cannot_be_read_are_counted_and_skipped(tmp_path: Path) -> None:
    root = write_vqa(tmp_path)
    for name in ("train2014/COCO_train2014_000000000002.jpg", "val2014/COCO_val2014_000000000009.jpg"):
        (root / name).write_bytes((root / name).read_bytes()[:200])
    settings = _settings(root)
    feed, told = _feed(load_vqa(settings), settings), []
    feed.skipped.tell = told.append
    assert [len(parts[0][2]) for parts in feed.train(0)] == [4] * 6
    assert sum(len(kinds) for *_, kinds in feed.val()) == 9
    assert len(told) == 2 and all("1 image cannot be read" in each for each in told)
    strict = _feed(load_vqa(settings), replace(settings, unreadable=0))
    with pytest.raises(GlocalError, match="At most 0 may be skipped"):
        list(strict.val())


@pytest.mark.parametrize("rand", ["rand-m9", "rand-m9-tweights"])
def test_colours_are_never_inverted(rand: str) -> None:
    (drawn,) = changes(Augment(rand=rand), Sight(32, 8), (0.5,) * 3)
    assert len(drawn.ops) == 14
    assert "Invert" not in {each.name for each in drawn.ops}
    assert drawn(Image.new("RGB", (16, 16))).size == (16, 16)
