"""The loop learns, adds up, averages, stops at what is not a number, and goes on where it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from glocal.data.settings import DataSettings
from glocal.errors import GlocalError
from glocal.recipes.run import accelerate as start
from glocal.recipes.run import open_data, prepare, run, seed
from glocal.store import load, save
from glocal.train import checkpoint
from glocal.train.journal import read
from glocal.train.screen import Silent
from glocal.train.settings import DistillSettings, MixSettings, OptimSettings, Recipe, SaveSettings
from glocal.zoo import create_model
from tests.unit.train.tiny import HOST, recipe, restless


def _run(settings: Recipe, folder: Path, **options):
    return run(settings, folder, show=Silent(), **options)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _same(first: Path, second: Path) -> bool:
    one, two = _weights(first), _weights(second)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_learns_and_leaves_its_folder_whole(tmp_path: Path) -> None:
    settings = recipe("local-ffn", limit=640, epochs=6, optim=OptimSettings(lr=5e-3))
    outcome = _run(settings, tmp_path / "run")
    assert outcome.metrics["top1"] > 40  # chance is 10
    names = {each.name for each in (tmp_path / "run").iterdir()}
    assert {"recipe.yaml", "log.jsonl", "metrics.json", "model.safetensors", "checkpoints"} <= names
    log = read(tmp_path / "run" / "log.jsonl")
    assert {"loss", "lr", "grad_norm", "images_per_second"} <= log[0].keys()
    assert [line["val_images"] for line in log if "val_images" in line] == [450] * 6
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert stored["top1"] == outcome.metrics["top1"]
    again = load(tmp_path / "run" / "model.safetensors")
    assert torch.equal(again.state_dict()["head.weight"], outcome.model.state_dict()["head.weight"])


def test_the_same_recipe_gives_the_same_weights_and_another_seed_does_not(tmp_path: Path) -> None:
    for name, settings in (("a", restless()), ("b", restless()), ("c", restless(seed=1))):
        _run(settings, tmp_path / name)
    assert _same(tmp_path / "a", tmp_path / "b")
    assert not _same(tmp_path / "a", tmp_path / "c")


def test_a_run_stopped_in_the_middle_of_an_epoch_ends_bit_identical(tmp_path: Path, monkeypatch) -> None:
    settings = restless(save=SaveSettings(every_steps=3))
    _run(settings, tmp_path / "whole")
    write = checkpoint.write

    def stop_after_third(path: Path, state: dict) -> None:
        write(path, state)
        if state["step"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write", stop_after_third)
    with pytest.raises(KeyboardInterrupt):
        _run(settings, tmp_path / "torn")
    monkeypatch.undo()
    torch.manual_seed(12345)  # a new process would start elsewhere
    _run(settings, tmp_path / "torn", resume=True)
    assert _same(tmp_path / "whole", tmp_path / "torn")
    states = [checkpoint.read(tmp_path / name / "checkpoints" / "last.pt") for name in ("whole", "torn")]
    assert all(torch.equal(a, b) for a, b in zip(*(state["ema"].values() for state in states), strict=True))
    logs = [[(x["step"], x.get("loss")) for x in read(tmp_path / name / "log.jsonl")] for name in ("whole", "torn")]
    assert logs[0] == logs[1]


def test_accumulated_parts_give_the_step_of_the_whole_batch(tmp_path: Path) -> None:
    _run(recipe(), tmp_path / "whole")
    _run(recipe(accumulate=4), tmp_path / "parts")
    whole, parts = _weights(tmp_path / "whole"), _weights(tmp_path / "parts")
    assert all(torch.allclose(whole[name], parts[name], atol=2e-5) for name in whole)


def test_the_moving_average_lags_behind_and_is_evaluated(tmp_path: Path) -> None:
    outcome = _run(recipe(ema=0.5), tmp_path / "run")
    state = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")
    assert "ema_top1" in outcome.metrics
    assert not torch.equal(state["ema"]["head.weight"], state["model"]["head.weight"])


def test_clipping_bounds_the_update(tmp_path: Path) -> None:
    sgd = OptimSettings(name="momentum", lr=1.0, momentum=0.0, weight_decay=0.0, schedule="constant")
    seed(0)
    for clip, moved in ((1e-4, True), (None, False)):
        loop = prepare(
            recipe(optim=replace(sgd, clip=clip)), open_data(recipe()), start(recipe(), tmp_path), tmp_path, Silent()
        )
        before = torch.cat([each.detach().flatten().clone() for each in loop.model.parameters()])
        loop._update(0, next(loop.task.batches(0, 0)))
        after = torch.cat([each.detach().flatten() for each in loop.model.parameters()])
        assert (float((after - before).norm()) <= 1.1e-4) == moved


def test_half_precision_trains_on_the_processor_too(tmp_path: Path) -> None:
    outcome = _run(recipe("life", precision="bf16"), tmp_path / "run")
    assert next(outcome.model.parameters()).dtype == torch.float32
    assert outcome.metrics["loss"] < 3


def test_a_loss_that_is_not_a_number_names_step_and_module(tmp_path: Path) -> None:
    loop = prepare(recipe(), open_data(recipe()), start(recipe(), tmp_path), tmp_path, Silent())
    batches = loop.task.batches(0, 0)
    loop._update(0, next(batches))
    block = loop.model.get_submodule("blocks.1.mlp.act")
    block.register_forward_hook(lambda module, inputs, output: output * float("inf") * 0)
    with pytest.raises(GlocalError, match=r"at step 2: the output of blocks\.1\.mlp\.act is the first"):
        loop._update(0, next(batches))
    assert loop.step == 1


def test_a_gradient_that_is_not_finite_names_its_parameter(tmp_path: Path) -> None:
    loop = prepare(recipe(), open_data(recipe()), start(recipe(), tmp_path), tmp_path, Silent())
    loop.model.get_parameter("blocks.0.mlp.fc1.weight").register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(GlocalError, match=r"gradient of blocks\.0\.mlp\.fc1\.weight is not finite at step 1"):
        loop._update(0, next(loop.task.batches(0, 0)))


def test_weights_that_are_broken_are_named(tmp_path: Path) -> None:
    loop = prepare(recipe(), open_data(recipe()), start(recipe(), tmp_path), tmp_path, Silent())
    loop.model.get_parameter("norm.weight").data[0] = float("nan")
    with pytest.raises(GlocalError, match=r"at step 1: the weight norm\.weight is not finite"):
        loop._update(0, next(loop.task.batches(0, 0)))


def test_where_losses_are_not_watched_the_run_goes_back_and_finds_the_step(tmp_path: Path) -> None:
    settings = recipe(epochs=3, log_every=5)
    loop = prepare(settings, open_data(settings), start(settings, tmp_path), tmp_path, Silent())
    loop.careful = False  # as on a GPU
    real, calls = loop.task.loss, []

    def poisoned(model, batch, key):
        calls.append(key)
        loss = real(model, batch, key)
        return loss * float("nan") if loop.step == 7 else loss

    loop.task.loss = poisoned  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(GlocalError, match="at step 8"):
        loop.run("nan")
    assert checkpoint.read(tmp_path / "checkpoints" / "last.pt")["step"] == 5


def test_a_resumed_recipe_that_differs_is_refused_with_the_difference(tmp_path: Path) -> None:
    _run(recipe(epochs=1), tmp_path / "run")
    changed = recipe(epochs=1, optim=OptimSettings(lr=0.5))
    with pytest.raises(GlocalError, match=r"optim\.lr: 0\.001 -> 0\.5"):
        _run(changed, tmp_path / "run", resume=True)


def _folder(root: Path, classes: str, images: int) -> None:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(images):
            Image.new("RGB", (8, 8), (80 * number, 10 * i, 0)).save(root / name / f"{i}.png")


@pytest.mark.parametrize(
    ("classes", "images", "told"), [("ab", 9, "training images: 8 -> 14"), ("abc", 5, "training images: 8 -> 12")]
)
def test_a_run_whose_images_have_changed_is_not_gone_on_with(
    tmp_path: Path, classes: str, images: int, told: str
) -> None:
    _folder(tmp_path / "data", "ab", 5)
    settings = recipe(epochs=1, data=DataSettings(str(tmp_path / "data"), batch_size=4, workers=0))
    _run(settings, tmp_path / "run")
    _folder(tmp_path / "data", classes, images)
    with pytest.raises(GlocalError, match=f"run was begun with other images: {told}"):
        _run(settings, tmp_path / "run", resume=True)


def test_the_same_number_of_images_of_other_classes_is_noticed_too(tmp_path: Path) -> None:
    _folder(tmp_path / "data", "ab", 5)
    settings = recipe(epochs=1, data=DataSettings(str(tmp_path / "data"), batch_size=4, workers=0))
    _run(settings, tmp_path / "run")
    (tmp_path / "data" / "b").rename(tmp_path / "data" / "c")
    with pytest.raises(GlocalError, match="other images: checksum of labels"):
        _run(settings, tmp_path / "run", resume=True)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _run(recipe(epochs=1), tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(GlocalError, match="holds a run already. Continue it with --resume"):
        _run(recipe(epochs=1), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    first = _run(recipe(epochs=1), tmp_path / "run").metrics
    before = _weights(tmp_path / "run")
    second = _run(recipe(epochs=1), tmp_path / "run", resume=True).metrics
    assert first["top1"] == second["top1"]
    assert all(torch.equal(before[name], each) for name, each in _weights(tmp_path / "run").items())


def test_a_class_count_that_does_not_match_the_data_is_refused(tmp_path: Path) -> None:
    settings = recipe()
    settings = replace(settings, host=replace(settings.host, arguments={**HOST, "num_classes": 7}))
    with pytest.raises(GlocalError, match="the recipe says 7 classes, but digits has 10"):
        _run(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_a_student_moves_towards_its_teacher(tmp_path: Path, kind: str, name: str) -> None:
    torch.manual_seed(1)
    teacher = create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **HOST)
    torch.nn.init.normal_(teacher.get_parameter("head.weight"))
    save(teacher, tmp_path / "teacher.safetensors")
    distill = DistillSettings(str(tmp_path / "teacher.safetensors"), kind=kind, alpha=1.0)  # pyright: ignore
    settings = recipe(distill=distill, optim=OptimSettings(lr=3e-3), epochs=6)
    settings = replace(settings, host=replace(settings.host, name=name))
    _run(settings, tmp_path / "run")
    losses = [line["loss"] for line in read(tmp_path / "run" / "log.jsonl") if "loss" in line]
    assert losses[-1] < 0.9 * losses[0]


def test_a_teacher_that_does_not_take_the_images_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    teacher = create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, **{**HOST, "img_size": 12})
    save(teacher, tmp_path / "teacher.safetensors")
    settings = recipe(distill=DistillSettings(str(tmp_path / "teacher.safetensors")))
    with pytest.raises(GlocalError, match=r"the teacher .* cannot take images of 1 channels and 8x8 pixels"):
        _run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mixing_an_odd_number_of_images_is_refused() -> None:
    from glocal.data.feed import feed
    from glocal.data.order import Order
    from glocal.train.tasks.classify import Classify

    settings = recipe(mix=MixSettings(mixup=0.8), batch=30)
    pair = open_data(settings)
    source = feed(pair.train, pair.val, settings.data, Order(160, 30, world=2), torch.device("cpu"), (8, 8))
    with pytest.raises(GlocalError, match="each of 2 processes gets 15 at a time.*a multiple of 4"):
        Classify(settings, source, 10)


def test_mixing_is_drawn_from_the_key_alone() -> None:
    from glocal.train.tasks.classify import _mixed, _mixup

    mixup = _mixup(MixSettings(mixup=0.8, cutmix=1.0), 10)
    assert mixup is not None
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    first, second, third = (_mixed(mixup, images.clone(), labels, key) for key in (3, 3, 4))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], third[0])


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(GlocalError, match="mixing pairs images"):
        recipe(batch=15, mix=MixSettings(mixup=0.8))
    with pytest.raises(GlocalError, match="cannot be shared by accumulate 3"):
        recipe(accumulate=3)
    with pytest.raises(GlocalError, match="a decay lies between 0 and 1"):
        recipe(ema=1.5)
    with pytest.raises(GlocalError, match="epochs is 0"):
        recipe(epochs=0)


def test_tensorboard_gets_the_figures_and_a_missing_tracker_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    _run(recipe(epochs=1, trackers=("tensorboard",)), tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next((tmp_path / "run").rglob("events.out.*"))))
    events.Reload()
    assert {"loss", "lr", "val/top1"} <= set(events.Tags()["scalars"])
    with pytest.raises(GlocalError, match="trackio, which is not installed"):
        _run(recipe(epochs=1, trackers=("trackio",)), tmp_path / "other")


def test_shards_go_with_neither_averages_nor_half_precision() -> None:
    with pytest.raises(GlocalError, match="shard goes with neither ema nor fp16"):
        recipe(shard=True, ema=0.9)


def test_a_setting_that_is_newer_than_the_run_is_no_difference_while_it_is_off() -> None:
    from glocal.train.plain import differences

    assert differences({"a": 1}, {"a": 1, "b": False, "c": {}, "d": None}) == []
    assert differences({"a": 1}, {"a": 1, "b": True}) == ["b: None -> True"]
    assert differences({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}}) == ["a.x: 1 -> 3", "a.y: 2 -> None"]
