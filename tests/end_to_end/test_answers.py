"""A run that answers questions, whole and tiny: trained, stopped, resumed, measured, asked, and misused."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from glocal.cli import app
from glocal.data.sight import Sight, gather, normalised
from glocal.errors import GlocalError
from glocal.recipes.answer_trained import ask, evaluate_answers
from glocal.recipes.reopen import reopen
from glocal.recipes.run import run
from glocal.recipes.schema import parse
from glocal.train.tasks.answer import Answer
from tests.question_sets import COLOURS, write_vilt, write_vqa

hf = pytest.importorskip("transformers", reason="ViLT comes with glocal[transformers]")

RECIPE = """
task: answer
host: {{name: {host}, pretrained: true, hidden_dropout_prob: {drop}}}
mechanisms: [{{cbs: {{tokens: {tokens}}}}}]
data: {{name: {data}, size: 32, batch_size: 8, workers: 0, vqa: {{least: 2}}, augment: {augment}}}
optim: {{lr: 0.004, schedule: constant}}
epochs: {epochs}
log_every: 1
trackers: []
"""
QUESTION = "What color is the block?"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a set, a host, and a run that has learned."""
    root = tmp_path_factory.mktemp("answers")
    write_vqa(root / "set")
    write_vilt(root / "host", initializer_range=0.2)
    run(parse(_text(root, epochs=15)), root / "run")
    return root


def _text(root: Path, **changes: Any) -> str:
    settings = {"tokens": "image", "augment": "none", "epochs": 1, "drop": 0.0, "data": root / "set", **changes}
    return RECIPE.format(host=settings.pop("host", root / "host"), **settings)


def _command(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def _refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, GlocalError), result.output
    return str(result.exception)


def test_it_learns_and_is_measured_again_from_its_folder_alone(place: Path, tmp_path: Path) -> None:
    metrics = json.loads((place / "run" / "metrics.json").read_text())
    assert metrics["classes"] == ["1", "blue", "no", "red", "yes"]
    assert metrics["vqa"] > 90
    shutil.copytree(place / "run", tmp_path / "moved")
    (place / "host").rename(place / "away")  # the run needs it no more
    try:
        rows = json.loads(_command("eval", tmp_path / "moved", "--format", "json"))
    finally:
        (place / "away").rename(place / "host")
    again = {row["measure"]: row["value"] for row in rows}
    assert again == pytest.approx(
        {
            "VQA accuracy": metrics["vqa"],
            **{key: metrics[key.replace("/", "_")] for key in ("yes/no", "number", "other")},
        }
    )


def test_other_questions_are_measured_with_the_answers_of_the_run(place: Path, tmp_path: Path) -> None:
    other = write_vqa(tmp_path / "other", 4, 3)
    assert "9 questions" in _command("eval", place / "run" / "model.safetensors", "--data", other)
    for file in (*other.glob("*val*.json"), *other.glob("val*/*")):
        file.unlink()
    assert evaluate_answers(str(place / "run"), str(other))["questions"] == 12  # all there are


def test_it_is_asked_about_images(place: Path, tmp_path: Path) -> None:
    images = sorted((place / "set" / "val2014").iterdir())
    rows = json.loads(
        _command("predict", place / "run", *images, "--question", QUESTION, "--top", 2, "--format", "json")
    )
    assert len(rows) == 2 * len(images)
    assert [row["answer"] for row in rows[::2]] == [list(COLOURS)[index % 2] for index in range(8, 12)]
    assert all(0 <= row["percent"] <= 100 for row in rows)
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    several, broken = ask(str(place / "run"), [images[0], tmp_path / "broken.jpg"], [QUESTION, "How many blocks?"], 1)
    assert [row["question"] for row in several] == [QUESTION, "How many blocks?"]
    assert several[0]["percent"] == pytest.approx(rows[0]["percent"], abs=1e-2)
    assert len(broken) == 1 and "broken.jpg cannot be read" in broken[0]


@pytest.mark.parametrize("tokens", ["text", "all"])
def test_a_run_stopped_in_the_middle_of_an_epoch_ends_as_if_it_had_not(
    place: Path, tmp_path: Path, tokens: str
) -> None:
    changed = {"tokens": tokens, "augment": "{rand: rand-m9-n2-p1.0}", "drop": 0.1, "epochs": 3}
    whole = run(parse(_text(place, **changed)), tmp_path / "whole").model
    recipe = parse(_text(place, **changed) + "save: {every_steps: 2}\n")
    with pytest.raises(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
        loss, calls = Answer.loss, []

        def stumbling(*args: Any) -> Any:
            calls.append(1)
            return loss(*args) if len(calls) < 6 else 1 / 0

        patch.setattr(Answer, "loss", stumbling)
        run(recipe, tmp_path / "cut")
    torch.manual_seed(99)
    resumed = run(recipe, tmp_path / "cut", resume=True).model
    for name, each in whole.state_dict().items():
        assert torch.equal(each, resumed.state_dict()[name]), name


def test_the_moving_average_and_a_checkpoint_answer_too(place: Path, tmp_path: Path) -> None:
    text = _text(place, tokens="all", epochs=2).replace("trackers: []", "trackers: []\nema: 0.5")
    metrics = run(parse(text), tmp_path / "run").metrics
    figures = evaluate_answers(str(tmp_path / "run" / "model_ema.safetensors"))
    assert figures["vqa"] == pytest.approx(metrics["ema_vqa"])
    _command("convert", tmp_path / "run" / "checkpoints" / "last.pt", "-o", tmp_path / "run" / "last.safetensors")
    (tmp_path / "run" / "metrics.json").unlink()  # as of a run that was stopped
    assert evaluate_answers(str(tmp_path / "run" / "last.safetensors"))["vqa"] == pytest.approx(metrics["vqa"])


def test_what_is_wrong_with_the_host_is_told_before_anything_is_written(place: Path, tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    shutil.copytree(place / "host", bert)
    hf.BertConfig(vocab_size=30).save_pretrained(bert)
    faults = [
        ({"host": tmp_path / "gone"}, "config.json of .*gone cannot be had"),
        ({"host": bert}, "bert is a bert; task answer takes a ViLT"),
        ({"drop": "0.1, hidden_drop: 0.1"}, "host.hidden_drop is no setting of .* Did you mean 'hidden_dropout_prob'"),
        (
            {"drop": "0.1, image_size: 64"},
            "1 tensors of the host are not among .*: vilt.embeddings.position_embeddings. ",
        ),
        ({"drop": "0.1, patch_size: [8, 8]"}, "host.patch_size is .*; ViLT takes one number"),
    ]
    for changes, told in faults:
        with pytest.raises(GlocalError, match=told):
            run(parse(_text(place, **changes)), tmp_path / "run")
    with pytest.raises(GlocalError, match="ViltForQuestionAnswering.* LIFE"):
        run(parse(_text(place).replace("[{cbs: {tokens: image}}]", "[life]")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_transformers_the_extra_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(GlocalError, match=r"pip install 'glocal\[transformers\]'"):
        run(parse(_text(place)), tmp_path / "run")


def test_wrong_commands_are_told(place: Path, tmp_path: Path) -> None:
    image = place / "set" / "val2014" / "COCO_val2014_000000000008.jpg"
    assert "Ask one: --question" in _refused("predict", place / "run", image)
    assert "does not exist" in _refused("predict", place / "run", tmp_path / "no.jpg", "--question", QUESTION)
    told = _refused("eval", place / "run", "--per-class", "--spoilt", 1)
    assert "--per-class, --spoilt are for classifiers" in told and "answers questions" in told
    assert "is no folder" in _refused("eval", place / "run", "--data", tmp_path / "gone")
    with pytest.raises(GlocalError, match="answers questions about images; ask it with glocal predict"):
        reopen(place / "run" / "model.safetensors")
    shutil.copytree(place / "run", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "host")
    told = _refused("predict", tmp_path / "cut", image, "--question", QUESTION)
    assert "holds no host. Finish it" in told
    (tmp_path / "cut" / "recipe.yaml").write_text("task: classify\nhost: {name: x}\ndata: {}\nepochs: 1\n")
    assert "answers no questions" in _refused("predict", tmp_path / "cut", image, "--question", QUESTION)


@pytest.mark.slow
def test_two_processes_learn_and_measure_as_one(place: Path, tmp_path: Path) -> None:
    text = _text(place, tokens="all", epochs=2)
    (tmp_path / "recipe.yaml").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "glocal"]
    command += ["train", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    run(parse(text), tmp_path / "one")
    one, two = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("one", "two"))
    assert one["questions"] == two["questions"] == 12
    assert _losses(tmp_path / "two") == pytest.approx(_losses(tmp_path / "one"), rel=1e-4)
    assert two["vqa"] == pytest.approx(one["vqa"], abs=0.5)


def _losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def test_images_and_questions_are_laid_out_as_transformers_does_it(place: Path) -> None:
    draw = np.random.default_rng(0)
    shapes = [tuple(draw.integers(40, 300, 2).tolist()) for _ in range(30)]
    images = [Image.fromarray(draw.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    sight = Sight(32, 8)
    processor = hf.models.vilt.image_processing_vilt.ViltImageProcessor(size={"shortest_edge": 32}, size_divisor=8)
    theirs = processor(images, return_tensors="pt")
    ours = normalised(gather([sight(each) for each in images], [[2, 5, 3]] * 30), (0.5,) * 3, (0.5,) * 3)
    assert torch.equal(ours["pixel_mask"], theirs["pixel_mask"])
    assert (ours["pixel_values"] - theirs["pixel_values"]).abs().max() < 0.02  # two resamplings, rounded to bytes
    tokenizer = hf.AutoTokenizer.from_pretrained(place / "host")
    questions = [QUESTION, "Is the block red?"]
    wanted = tokenizer(questions, padding=True, return_tensors="pt")
    laid = gather(images[:2], [tokenizer(each)["input_ids"] for each in questions])
    assert torch.equal(laid["input_ids"], wanted["input_ids"])
    assert torch.equal(laid["attention_mask"], wanted["attention_mask"])
