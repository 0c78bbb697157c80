"""Questions about images in VQAv2's files: which of them are learned, and the answers that can be given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from glocal.data.answers import normalise, scores
from glocal.data.dense import Findings
from glocal.data.questions import Question, QuestionPair, Questions, Vqa
from glocal.data.settings import DataSettings
from glocal.data.splits import split_names
from glocal.data.vqa_files import Asked, part_files, read_part
from glocal.errors import GlocalError


def load_vqa(settings: DataSettings, seed: int = 0) -> QuestionPair:
    """Open both parts, and say what had to be left out.

    `train_split: train+val` learns from both. Where no other part has answers, the questions about a share of the
    images, `holdout`, are held out.
    """
    root, findings = folder(settings), Findings()
    train, val = _parts(root, settings, seed, findings)
    classes = vocabulary(train, settings.vqa or Vqa(), root)
    learned = _scored(train, classes)
    kept = [each for each in learned.samples if each.answers]
    without = len(train) - len(kept)
    told = f"{without} of {len(train)} training questions have none of the {len(classes)} answers learned; left out"
    if settings.limit:
        kept = [kept[i] for i in _shuffled(len(kept), seed)[: settings.limit]]
    notes = (*findings.notes(settings.unreadable), *([told] if without else []))
    return QuestionPair(replace(learned, samples=kept), _scored(val, classes), notes)


def load_measured(
    settings: DataSettings, classes: tuple[str, ...], seed: int = 0, *, whole: bool = False
) -> tuple[Questions, tuple[str, ...]]:
    """Open the questions to measure a model on that gives these answers: the part that `load_vqa` gives.

    Where no part is for that, `whole` asks for all questions there are.
    """
    root, findings = folder(settings), Findings()
    if others := _others(root, settings):
        asked = read_part(root, others, findings, settings.unreadable)
    else:
        parts = _parts(root, settings, seed, findings)
        asked = [*parts[0], *parts[1]] if whole else parts[1]
    return _scored(asked, classes), findings.notes(settings.unreadable)


def vocabulary(asked: Sequence[Asked], settings: Vqa, root: Path) -> tuple[str, ...]:
    """List the answers that enough questions have, the commonest first."""
    counts = Counter(normalise(each.agreed) for each in asked)
    counts.pop("", None)  # nothing but articles and marks
    listed = sorted(counts, key=lambda answer: (-counts[answer], answer))
    kept = tuple(answer for answer in listed if counts[answer] >= settings.least)
    if len(kept) < 2:
        most = f"the commonest is {listed[0]!r}, {counts[listed[0]]} times" if listed else "there is no answer"
        raise GlocalError(
            f"{len(kept)} answers of {root} stand at {settings.least} training questions or more, and two are needed; "
            f"{most}. Lower data.vqa.least."
        )
    return kept


def folder(settings: DataSettings) -> Path:
    """Find the folder a set lies in."""
    root = Path(settings.root or settings.name).expanduser()
    if not root.is_dir():
        raise GlocalError(f"{root} is no folder. Give --data one with VQAv2's JSON files and images.")
    return root


def _parts(root: Path, settings: DataSettings, seed: int, findings: Findings) -> tuple[list[Asked], list[Asked]]:
    train = [each for names in _learned(settings) for each in read_part(root, names, findings, settings.unreadable)]
    if others := _others(root, settings):
        return train, read_part(root, others, findings, settings.unreadable)
    # By image: none is learned from that is asked about later.
    images = sorted({each.image for each in train})
    held = {images[i] for i in _shuffled(len(images), seed)[: max(round(settings.holdout * len(images)), 1)]}
    return [each for each in train if each.image not in held], [each for each in train if each.image in held]


def _learned(settings: DataSettings) -> list[tuple[str, ...]]:
    """Give the names to look for, of each part that is learned from."""
    if settings.train_split:
        return [(name,) for name in settings.train_split.split("+")]
    return [split_names(settings)[0]]


def _others(root: Path, settings: DataSettings) -> tuple[str, ...]:
    """Name the parts to measure on, if there is one that is not learned from and has answers; or that was named."""
    names = split_names(settings)[1]
    if settings.eval_split:
        return names
    others = tuple(name for name in names if (name,) not in _learned(settings))
    return others if any(all(part_files(root, name)) for name in others) else ()


def _shuffled(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def _scored(asked: Sequence[Asked], classes: tuple[str, ...]) -> Questions:
    numbers = {answer: i for i, answer in enumerate(classes)}
    samples: list[Question] = []
    for each in asked:
        given = scores(each.answers)
        answers = tuple((numbers[answer], score) for answer, score in given.items() if answer in numbers and score)
        samples.append(Question(each.image, each.text, answers, each.kind))
    return Questions(samples, classes)
