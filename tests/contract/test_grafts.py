"""Every mechanism on every host it fits: it runs, learns, keeps what it promises, and is refused by name elsewhere."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from glocal import GlocalError, enhance, fold, load, save
from tests.contract.cases import HOSTS, MECHANISMS, error, fitting, host, images, lively, refused

pairs = pytest.mark.parametrize("host_name, mechanism", fitting())
preserving_pairs = pytest.mark.parametrize("host_name, mechanism", fitting(preserve=True))


@pairs
def test_a_graft_runs_forward_and_backward(host_name: str, mechanism: str) -> None:
    model = enhance(host(host_name), MECHANISMS[mechanism]).train()
    out = model(images(host_name))
    out = torch.stack(out).mean(0) if isinstance(out, tuple) else out
    assert out.shape == (2, 5)
    out.square().mean().backward()
    missing = [name for name, each in model.named_parameters() if each.grad is None]
    # PiT's and DeiT's heads, registers and the last feed-forward network behind a class token may get none.
    assert not [name for name in missing if name in model.glocal.new and not _behind_class_token(host_name, name)]


@pairs
def test_every_new_parameter_changes_the_output(host_name: str, mechanism: str) -> None:
    model = lively(enhance(host(host_name), MECHANISMS[mechanism])).eval()
    _assert_each_parameter_matters(model, host_name)


@preserving_pairs
def test_every_new_parameter_of_a_preserving_graft_changes_the_output(host_name: str, mechanism: str) -> None:
    model = lively(enhance(host(host_name), MECHANISMS[mechanism], preserve=True)).eval()
    _assert_each_parameter_matters(model, host_name)


@preserving_pairs
def test_preserve_keeps_the_hosts_outputs(host_name: str, mechanism: str) -> None:
    plain, x = host(host_name), images(host_name)
    model = enhance(plain, MECHANISMS[mechanism], preserve=True)
    with torch.no_grad():
        assert error(model(x), plain(x)) <= 1e-5
    assert not model.glocal.gone


@pytest.mark.parametrize("host_name, mechanism", refused())
def test_what_does_not_fit_is_refused_by_name(host_name: str, mechanism: str) -> None:
    kind = type(MECHANISMS[mechanism]).__name__
    with pytest.raises(GlocalError) as caught:
        enhance(host(host_name), MECHANISMS[mechanism])
    assert kind in str(caught.value) or "cannot give up" in str(caught.value)
    assert not hasattr(host(host_name), "glocal")


@pairs
def test_a_graft_survives_copying_saving_and_folding(host_name: str, mechanism: str, tmp_path: Path) -> None:
    x = images(host_name)
    model = lively(enhance(host(host_name), MECHANISMS[mechanism])).eval()
    with torch.no_grad():
        wanted = model(x)
        assert torch.equal(copy.deepcopy(model)(x), wanted)
        assert torch.equal(_pickled(model)(x), wanted)
        folded = fold(model)
        assert error(folded(x), wanted) <= 1e-5
        assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
        save(model, tmp_path / "model.safetensors")
        assert torch.equal(load(tmp_path / "model.safetensors", host=HOSTS[host_name].build())(x), wanted)


@preserving_pairs
def test_the_plain_hosts_checkpoint_loads_into_a_preserving_graft(host_name: str, mechanism: str) -> None:
    other = lively(HOSTS[host_name].build()).eval()
    x = images(host_name)
    model = enhance(host(host_name), MECHANISMS[mechanism], preserve=True)
    report = model.load_state_dict(other.state_dict(), strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= set(model.glocal.new)
    with torch.no_grad():
        assert error(model(x), other(x)) <= 1e-5


@torch.no_grad()
def _assert_each_parameter_matters(model: nn.Module, host_name: str) -> None:
    x = images(host_name)
    before, parameters = model(x), dict(model.named_parameters())
    for name in model.glocal.new:
        if _behind_class_token(host_name, name):
            continue
        saved = parameters[name].clone()
        # A gate may be saturated for one push; a parameter that is never used stays silent for all.
        pushes = [torch.randn_like(saved) * size for size in (1, -1, 5, -5)]
        changed = False
        for push in pushes:
            parameters[name].copy_(saved + push)
            changed = changed or not torch.equal(model(x), before)
        assert changed, f"{name} changes nothing"
        parameters[name].copy_(saved)
    assert torch.equal(model(x), before)


def _behind_class_token(host_name: str, name: str) -> bool:
    """Whether a parameter of the last block only reaches patch tokens that nobody reads (LocalViT, HOSTS)."""
    last = {"pit": "transformers.1.blocks.1", "hf_vit": "vit.layers.1"}.get(host_name, "blocks.1")
    local = any(f".{part}." in name for part in ("mlp.inner", "act.new", "norm.new", "activation_fn.new"))
    queries = name.startswith(f"{last}.attention.q_proj")  # of its own tokens, the class token asks alone
    return HOSTS[host_name].classifies_by_token and (queries or (name.startswith(f"{last}.mlp") and local))


def _pickled(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)
