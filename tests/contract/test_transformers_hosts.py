"""Every vision transformer of transformers that is a host: paper form, preserved, saved, loaded, watched, mistaken."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glocal
from glocal import LIFE, ContextBroadcast, ConvStem, GlocalError, LocalFFN, UniformHead, enhance, fold
from glocal.explain import watch
from glocal.mechanisms.life import MultiScaleQKV
from tests.contract.cases import error, lively
from tests.contract.transformers_hosts import TINY

hf = pytest.importorskip("transformers", reason="transformers is not installed; pip install 'glocal[transformers]'")

KINDS: dict[str, tuple[str, dict[str, Any], int]] = {  # config, its arguments, tokens before the patches
    "ViTForImageClassification": ("ViTConfig", TINY, 1),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", TINY, 2),
    "ViTMSNForImageClassification": ("ViTMSNConfig", TINY, 1),
    "IJepaForImageClassification": ("IJepaConfig", TINY, 0),
    "BeitForImageClassification": ("BeitConfig", TINY, 1),
    "Dinov2ForImageClassification": ("Dinov2Config", TINY, 1),
    "Dinov2Backbone": ("Dinov2Config", TINY, 1),
    "Dinov2WithRegistersForImageClassification": ("Dinov2WithRegistersConfig", {**TINY, "num_register_tokens": 3}, 4),
    "DINOv3ViTModel": ("DINOv3ViTConfig", {**TINY, "num_register_tokens": 2}, 3),
    "SiglipForImageClassification": ("SiglipConfig", {"vision_config": TINY}, 0),
    "CLIPForImageClassification": ("CLIPConfig", {"vision_config": TINY}, 1),
    "CLIPVisionModel": ("CLIPVisionConfig", TINY, 1),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
MIXTURE = (LIFE(), LocalFFN(), ContextBroadcast(at="both"))


def build(kind: str) -> Any:
    config, arguments, _ = KINDS[kind]
    torch.manual_seed(0)
    return lively(getattr(hf, kind)(getattr(hf, config)(**arguments))).eval()


def look(model: Any, images: Tensor | None = None) -> Tensor:
    """Give what a model says, whatever it calls it."""
    images = _images() if images is None else images
    with torch.no_grad():
        found = model(pixel_values=images)
    return next(
        found[name] for name in ("logits", "pooler_output", "last_hidden_state", "feature_maps") if name in found
    )


def tensor(found: Any) -> Tensor:
    return found[-1] if isinstance(found, tuple) else found


def _images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@every_kind
def test_the_three_mechanisms_change_it_and_keep_each_other_company(kind: str) -> None:
    host = build(kind)
    model = lively(enhance(host, *MIXTURE)).eval()
    before, after = tensor(look(host)), tensor(look(model))
    assert after.shape == before.shape
    assert after.isfinite().all()
    assert error(after, before) > 1e-3
    assert torch.equal(tensor(look(copy.deepcopy(model))), after)
    assert error(tensor(look(fold(model))), after) <= 1e-5
    cell = next(module.cell for module in model.modules() if hasattr(module, "cell"))
    assert (cell.read().height, cell.read().width, cell.read().prefix) == (4, 4, KINDS[kind][2])


@every_kind
def test_preserved_it_says_what_it_said(kind: str) -> None:
    host = build(kind)
    mechanisms = (LIFE(), LocalFFN(), ContextBroadcast(scaled=True), UniformHead("c"))
    model = enhance(host, *mechanisms, preserve=True)
    assert error(tensor(look(model)), tensor(look(host))) <= 1e-5
    assert not model.glocal.gone
    assert error(tensor(look(lively(model).eval())), tensor(look(host))) > 1e-3


@every_kind
def test_life_starts_from_the_hosts_projections(kind: str) -> None:
    host = build(kind)
    model = enhance(host, LIFE(layers=(0,)))
    attention = next(module for module in model.modules() if hasattr(module, "q_proj"))
    chain = attention.q_proj.inner.inner
    assert isinstance(chain, MultiScaleQKV)
    own = next(module for module in host.modules() if hasattr(module, "q_proj"))
    rows = [getattr(own, name).weight[:8] for name in ("q_proj", "k_proj", "v_proj")]
    assert torch.equal(chain.pointwise[0].weight, torch.cat(rows))


def test_queries_keys_and_values_are_those_of_one_chain() -> None:
    """Written out: what the attention asks of its three projections is MultiScaleQKV of its tokens."""
    model = lively(enhance(build("ViTForImageClassification"), LIFE())).eval()
    seen: dict[str, Tensor] = {}
    attention = model.vit.layers[0].attention
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(attention, name).register_forward_hook(
            lambda _, args, out, name=name: seen.update({name: out, "tokens": args[0]})
        )
    look(model)
    chain = attention.q_proj.inner
    with torch.no_grad():
        wanted = chain.inner(seen["tokens"], chain.cell.read())
    assert torch.equal(torch.cat([seen[name] for name in ("q_proj", "k_proj", "v_proj")], dim=-1), wanted)


def test_it_is_saved_and_loaded_onto_a_host_of_ones_own(tmp_path: Path) -> None:
    model = lively(enhance(build("ViTForImageClassification"), *MIXTURE)).eval()
    glocal.save(model, tmp_path / "model.safetensors")
    again = glocal.load(tmp_path / "model.safetensors", host=build("ViTForImageClassification"))
    assert torch.equal(look(again.eval()), look(model))


def test_the_hosts_own_checkpoint_folder_still_loads(tmp_path: Path) -> None:
    host = build("Dinov2ForImageClassification")
    host.save_pretrained(tmp_path)
    again = hf.Dinov2ForImageClassification.from_pretrained(tmp_path).eval()
    model = enhance(again, LIFE(), ContextBroadcast(scaled=True), preserve=True)
    assert error(look(model), look(host)) <= 1e-5


def test_its_attention_is_watched_as_before() -> None:
    model = lively(enhance(build("ViTForImageClassification"), *MIXTURE)).eval()
    with torch.no_grad(), watch(model) as seen:
        model(pixel_values=_images())
    assert [(each.height, each.width, each.prefix) for each in seen.lattices] == [(4, 4, 1)] * 2


def test_it_is_compiled_into_one_graph_and_exported() -> None:
    model = lively(enhance(build("Dinov2ForImageClassification"), *MIXTURE)).eval()
    wanted = look(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert error(look(compiled), wanted) <= 1e-5
    with torch.no_grad():
        program = torch.export.export(model, (_images(),), strict=False)
        assert error(program.module()(_images()).logits, wanted) <= 1e-5


def test_one_model_serves_several_threads() -> None:
    model = lively(enhance(build("ViTForImageClassification"), LIFE())).eval()
    look(model)  # the patch embedding tells the lattice
    attention = model.vit.layers[0].attention
    tokens, others = torch.randn(2, 1, 17, 24)
    with torch.no_grad():
        attention.q_proj(tokens)
        wanted = attention.k_proj(tokens), attention.v_proj(tokens)
        attention.q_proj(tokens)
        with ThreadPoolExecutor(1) as pool:  # another request comes in between
            pool.submit(attention.q_proj, others).result()
        assert torch.equal(attention.k_proj(tokens), wanted[0])
        assert torch.equal(attention.v_proj(tokens), wanted[1])


def test_keys_asked_for_alone_are_refused() -> None:
    model = enhance(build("ViTForImageClassification"), LIFE())
    with pytest.raises(GlocalError, match="queries first"):
        model.vit.layers[0].attention.k_proj(torch.randn(1, 17, 24))


def test_a_stem_tells_its_type_to_a_host_that_asks() -> None:
    model = enhance(build("CLIPForImageClassification"), ConvStem()).bfloat16()
    assert look(model, _images().bfloat16()).dtype == torch.bfloat16


def test_models_that_are_no_hosts_are_refused_with_the_names_of_those_that_are() -> None:
    class Odd(nn.Module):
        pass

    with pytest.raises(GlocalError, match="Dinov2Model"):
        enhance(Odd(), LIFE())
    swin = hf.SwinModel(hf.SwinConfig(image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2]))
    with pytest.raises(GlocalError, match="SwinModel is not a host"):
        enhance(swin, LIFE())
