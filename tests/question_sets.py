"""A tiny set in VQAv2's files, and a tiny ViLT in a folder, made on the spot: questions about blocks of colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"red": (230, 30, 30), "blue": (30, 40, 230)}
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] what color colour is the block it red blue how many blocks are there ? . ##s"


def block(index: int, height: int = 32, width: int = 48) -> tuple[np.ndarray, str]:
    """Draw a block of one colour; return pixels and the colour's name."""
    draw = np.random.default_rng(index)
    pixels = draw.integers(90, 140, (height, width, 3), dtype=np.uint8)
    name = list(COLOURS)[index % 2]
    pixels[2:-2, 4:-4] = COLOURS[name]
    return pixels, name


def write_vqa(root: Path, train: int = 8, val: int = 4) -> Path:
    """Write VQAv2's files: three questions about each image."""
    root.mkdir(parents=True, exist_ok=True)
    for part, span in (("train2014", range(train)), ("val2014", range(train, train + val))):
        (root / part).mkdir(exist_ok=True)
        questions, annotations = [], []
        for index in span:
            pixels, name = block(index, *((48, 32) if index % 3 == 0 else (32, 48)))
            Image.fromarray(pixels).save(root / part / f"COCO_{part}_{index:012}.jpg", quality=95)
            for i, (question, answer, kind) in enumerate(asked(name)):
                number = 10 * index + i
                questions.append({"image_id": index, "question": question, "question_id": number})
                annotations.append(annotation(number, index, [answer] * 7 + ["unsure"] * 2 + ["A " + answer], kind))
        about: dict[str, Any] = {"data_type": "mscoco", "data_subtype": part, "license": {}, "info": {}}
        (root / f"v2_OpenEnded_mscoco_{part}_questions.json").write_text(json.dumps(about | {"questions": questions}))
        (root / f"v2_mscoco_{part}_annotations.json").write_text(json.dumps(about | {"annotations": annotations}))
    return root


def asked(name: str) -> list[tuple[str, str, str]]:
    """List questions about a block, with the answer and the kind of each."""
    red = ("Is the block red?", "yes" if name == "red" else "no", "yes/no")
    return [("What color is the block?", name, "other"), red, ("How many blocks are there?", "one", "number")]


def annotation(number: int, image: int, answers: list[str], kind: str) -> dict[str, Any]:
    """Write one question's answers as VQAv2 does."""
    given = [{"answer": each, "answer_confidence": "yes", "answer_id": i + 1} for i, each in enumerate(answers)]
    named = {"question_id": number, "image_id": image, "question_type": "none", "answer_type": kind}
    return named | {"multiple_choice_answer": answers[0], "answers": given}


def write_vilt(folder: Path, **options: Any) -> Path:
    """Write a ViLT with random weights, and its words, as transformers does."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS.split()) + "\n")
    hf.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    sizes |= {"image_size": 32, "patch_size": 8, "max_position_embeddings": 12, "vocab_size": len(WORDS.split())}
    hf.ViltForMaskedLM(hf.ViltConfig(**(sizes | options))).save_pretrained(folder)
    return folder
