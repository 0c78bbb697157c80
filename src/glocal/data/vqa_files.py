"""VQAv2's files: questions and annotations as JSON, images in folders.

Goyal et al., "Making the V in VQA Matter".
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from glocal.data.dense import Findings
from glocal.data.images import few
from glocal.data.questions import KINDS
from glocal.errors import GlocalError


@dataclass(frozen=True)
class Asked:
    """A question as the files have it."""

    image: Path
    text: str
    answers: tuple[str, ...]
    agreed: str
    """The answer that the files name for all."""
    kind: int


Files = tuple[Path | None, Path | None]  # questions and annotations


def part_files(root: Path, name: str) -> Files:
    """Find the two files of a part; of several, those of VQAv2."""
    listed = [path for pattern in ("*.json", "*/*.json") for path in root.glob(pattern)]
    found: list[Path | None] = []
    for kind in ("questions", "annotations"):
        fitting = [path for path in listed if {name, kind} <= _words(path)]
        # The first edition of VQA, and multiple choice, may lie beside.
        rank = {path: (path.stem[:3] != "v2_", "MultipleChoice" in path.stem, str(path)) for path in fitting}
        found.append(min(fitting, key=rank.__getitem__, default=None))
    return found[0], found[1]


def _words(path: Path) -> set[str]:
    words = {*path.stem.split("_"), path.parent.name}
    return words | {re.sub(r"20\d\d$", "", word) for word in words}


def read_part(root: Path, names: Sequence[str], findings: Findings, limit: int) -> list[Asked]:
    """Read the questions of the first part of these names that is there; at most `limit` may lack answers."""
    found = [part_files(root, name) for name in names]
    questions, annotations = next((each for each in found if all(each)), max(found, key=any))
    if questions is None or annotations is None:
        _refuse_missing(root, names, questions or annotations, lacking="annotations" if questions else "questions")
    asked, whole = _entries(questions, "questions", ("image_id", "question", "question_id"))
    answered, _ = _entries(annotations, "annotations", ("question_id", "answers"))
    given = {each["question_id"]: each for each in answered if each["answers"]}
    bare = [f"question {each['question_id']}" for each in asked if each["question_id"] not in given]
    what = f"questions of {questions.name} without answers in {annotations.name}"
    if len(bare) > limit:
        raise GlocalError(
            f"{len(bare)} {what}: {few(bare)}. At most {limit} may be left out. Do the two files belong together? "
            f"If they do, raise data.unreadable."
        )
    for each in bare:
        findings.mend(f"{what} left out", each)
    return _matched(root, questions, str(whole.get("data_subtype") or ""), asked, given, findings)


def _refuse_missing(root: Path, names: Sequence[str], beside: Path | None, lacking: str) -> NoReturn:
    lacking, other = (lacking, f" beside {beside.name}") if beside else ("questions and annotations", "")
    published = f"v2_OpenEnded_mscoco_{names[0]}2014_questions.json and v2_mscoco_{names[0]}2014_annotations.json"
    raise GlocalError(
        f"{root} holds no {lacking} for {' or '.join(names)}{other}. VQAv2's files are called {published}."
    )


def _matched(
    root: Path, path: Path, part: str, asked: list[dict[str, Any]], given: dict[Any, dict[str, Any]], findings: Findings
) -> list[Asked]:
    """Bring questions, their answers and their images together; missing images are noted."""
    part = part or [path.parent.name, *path.stem.split("_")][-2]
    there = _images(root, path, part)
    made: list[Asked] = []
    missing: dict[str, None] = {}
    for each in asked:
        answered = given.get(each["question_id"])
        if answered is None:
            continue
        number = f"{each['image_id']:012}.jpg"
        image = there.get(f"COCO_{part}_{number}") or there.get(number)
        if image is None:
            missing[f"COCO_{part}_{number}"] = None
        else:
            made.append(_asked(image, str(each["question"]), answered))
    if missing and not made:
        raise GlocalError(
            f"{root} holds none of the {len(missing)} images that {path.name} asks about, such as "
            f"{next(iter(missing))}. Put them into {root / part}."
        )
    findings.unusable += [f"{name} (missing)" for name in missing]
    return made


def _asked(image: Path, text: str, answered: dict[str, Any]) -> Asked:
    try:
        answers = tuple(str(each["answer"]) for each in answered["answers"])
    except (KeyError, TypeError):
        raise GlocalError(
            f"the answers to question {answered['question_id']} are {str(answered['answers'])[:60]}; VQAv2 has a list "
            f"of entries with the key 'answer'."
        ) from None
    agreed = str(answered.get("multiple_choice_answer") or Counter(answers).most_common(1)[0][0])
    kind = answered.get("answer_type")
    return Asked(image, text, answers, agreed, KINDS.index(kind if kind in KINDS else "other"))


def _images(root: Path, path: Path, part: str) -> dict[str, Path]:
    """List the image files of a part by name: one look at each folder, not one for each of many thousand files."""
    found: dict[str, Path] = {}
    for folder in (root, path.parent, root / "images", root / "images" / part, path.parent / part, root / part):
        if folder.is_dir():
            found |= {entry.name: folder / entry.name for entry in os.scandir(folder) if entry.name.endswith(".jpg")}
    return found


def _entries(path: Path, key: str, wanted: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read a file's list of that name, each entry with the keys wanted."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GlocalError(f"{path} cannot be read as JSON: {error}") from None
    listed = read.get(key) if isinstance(read, dict) else None
    if not isinstance(listed, list) or not listed:
        found = f"the keys {few(list(read))}" if isinstance(read, dict) else f"a {type(read).__name__}"
        raise GlocalError(f"{path} has no list of {key}, but {found}; a file of VQAv2's {key} has one.")
    for i, each in enumerate(listed):
        lacking = [name for name in wanted if not isinstance(each, dict) or name not in each]
        if lacking:
            raise GlocalError(f"{path}: entry {i} of {key} lacks {', '.join(lacking)}; VQAv2's entries have it.")
    return listed, read
