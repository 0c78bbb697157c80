"""Each parameter gets the rate and decay that it, its module and the recipe ask for."""

from __future__ import annotations

import itertools

import pytest
import timm
import torch

from glocal import DTM, enhance
from glocal.errors import GlocalError
from glocal.train.optim import groups, optimiser, rate, schedule
from glocal.train.settings import OptimSettings


def _swin() -> torch.nn.Module:
    arguments = {
        "img_size": 32,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 12,
        "depths": (1, 1),
        "num_heads": (1, 2),
    }
    return enhance(timm.create_model("swin_tiny_patch4_window7_224", num_classes=3, **arguments), DTM())


def _vit() -> torch.nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=3, num_heads=2, num_classes=3)


def _of(model: torch.nn.Module, settings: OptimSettings) -> dict[str, dict[str, float]]:
    names = {id(each): name for name, each in model.named_parameters()}
    return {names[id(each)]: group for group in groups(model, settings) for each in group["params"]}


def test_offsets_of_deformable_merging_learn_a_hundred_times_slower() -> None:
    model = _swin()
    found = _of(model, OptimSettings())
    offsets = [name for name in found if ".offset." in name]
    assert offsets
    assert all((found[name]["lr_scale"] == 0.01) == (name in offsets) for name in found)
    optimizer = optimiser(model, OptimSettings(lr=1e-3, schedule="cosine", warmup_epochs=1), 64)
    scheduler = schedule(optimizer, OptimSettings(lr=1e-3, warmup_epochs=1, min_lr=0), 4, 10)
    for step in (0, 5, 20, 39):
        scheduler.step_update(step)
        rates = {group["lr_scale"]: group["lr"] for group in optimizer.param_groups}
        assert rates[0.01] == pytest.approx(0.01 * rates[1.0])


def test_every_parameter_is_in_one_group() -> None:
    model = _swin()
    listed = [id(each) for group in groups(model, OptimSettings()) for each in group["params"]]
    assert sorted(listed) == sorted(id(each) for each in model.parameters())


def test_biases_norms_and_listed_parameters_do_not_decay() -> None:
    found = _of(_vit(), OptimSettings(weight_decay=0.1, no_weight_decay=("head.*",)))
    free = {name for name, group in found.items() if group["weight_decay"] == 0}
    assert {"pos_embed", "cls_token", "norm.weight", "blocks.0.mlp.fc1.bias", "head.weight"} <= free
    assert found["blocks.0.mlp.fc1.weight"]["weight_decay"] == 0.1


def test_layer_decay_slows_the_layers_far_from_the_head() -> None:
    found = _of(_vit(), OptimSettings(layer_decay=0.5))
    scales = [found[f"blocks.{i}.mlp.fc1.weight"]["lr_scale"] for i in range(3)]
    assert scales[1] == pytest.approx(2 * scales[0])
    assert scales[2] == pytest.approx(2 * scales[1])
    assert found["head.weight"]["lr_scale"] == 1
    with pytest.raises(GlocalError, match="does not tell its layers"):
        groups(torch.nn.Linear(2, 2), OptimSettings(layer_decay=0.5))


def test_the_rate_grows_with_the_batch_where_a_base_is_given() -> None:
    assert rate(OptimSettings(lr=5e-4, base_batch=512), 1024) == pytest.approx(1e-3)
    assert rate(OptimSettings(lr=5e-4), 1024) == 5e-4


def _rates(steps: int = 100, **settings) -> list[float]:
    chosen = OptimSettings(lr=1.0, **settings)
    optimizer = optimiser(torch.nn.Linear(2, 2), chosen, 1)
    scheduler = schedule(optimizer, chosen, 10, steps // 10)
    rates = []
    for step in range(steps):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_schedules_warm_up_fall_and_cool_down() -> None:
    cosine = _rates(warmup_epochs=2, warmup_lr=0.0, min_lr=0.1, cooldown_epochs=2)
    assert cosine[0] == 0
    assert max(cosine) == max(cosine[19:21])
    assert all(a >= b for a, b in itertools.pairwise(cosine[20:]))
    assert cosine[80:] == [0.1] * 20
    multistep = _rates(schedule="multistep", decay_epochs=(6, 8), decay_rate=0.2)
    assert [round(multistep[i], 4) for i in (10, 65, 95)] == [1, 0.2, 0.04]
    step = _rates(schedule="step", decay_epochs=(4,), decay_rate=0.5)
    assert [step[i] for i in (10, 45, 85)] == [1, 0.5, 0.25]
    poly = _rates(schedule="poly", decay_rate=1.0, min_lr=0)
    assert poly[50] == pytest.approx(0.5)
    assert set(_rates(schedule="constant")) == {1.0}


def test_an_unknown_optimiser_is_refused_with_the_nearest() -> None:
    with pytest.raises(GlocalError, match="Did you mean 'adamw'"):
        optimiser(torch.nn.Linear(2, 2), OptimSettings(name="adamww"), 1)
    with pytest.raises(GlocalError, match="needs decay_epochs"):
        OptimSettings(schedule="multistep")


@pytest.mark.parametrize("name", ["adahessian", "bnbadam", "fusedadam"])
def test_an_optimiser_that_cannot_be_had_here_is_refused_in_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(GlocalError, match=name):
        optimiser(torch.nn.Linear(2, 2), OptimSettings(name=name), 1)


def test_an_optimiser_may_look_ahead_as_timm_spells_it() -> None:
    made = optimiser(torch.nn.Linear(2, 2), OptimSettings(name="lookahead_adamw"), 1)
    assert type(made).__name__ == "Lookahead"
    with pytest.raises(GlocalError, match="unknown optimiser 'lookahead_adamww'"):
        optimiser(torch.nn.Linear(2, 2), OptimSettings(name="lookahead_adamww"), 1)


def test_steps_end_at_the_lowest_rate_and_hold_still_while_cooling_down() -> None:
    falling = _rates(schedule="step", decay_epochs=(1,), decay_rate=0.1, min_lr=2e-3, warmup_epochs=1, warmup_lr=1e-6)
    assert falling[0] == pytest.approx(1e-6)  # the warm-up may begin below the lowest rate
    assert [falling[i] for i in (10, 20, 30, 99)] == pytest.approx([0.1, 0.01, 2e-3, 2e-3])
    held = _rates(schedule="step", decay_epochs=(1,), decay_rate=0.5, min_lr=0.0, cooldown_epochs=3)
    assert [held[i] for i in (59, 69)] == [0.5**5, 0.5**6]
    assert set(held[60:]) == {0.5**6}
