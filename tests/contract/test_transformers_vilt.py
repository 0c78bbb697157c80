"""ViLT hears a mean within its image tokens, its text tokens or both (Context Broadcasting, Table 10)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import glocal
from glocal import LIFE, ContextBroadcast, EarlyMLP, GlocalError, LocalFFN, SqueezeContext, enhance
from tests.contract.cases import error, lively
from tests.contract.transformers_hosts import TINY

hf = pytest.importorskip("transformers", reason="transformers is not installed; pip install 'glocal[transformers]'")

TEXT, SIDE = 6, 4  # tokens of the question, patches a side


@pytest.fixture(scope="module")
def host() -> Any:
    torch.manual_seed(0)
    config = hf.ViltConfig(**TINY, vocab_size=30, num_labels=5, max_position_embeddings=16)
    return lively(hf.ViltForQuestionAnswering(config)).eval()


def inputs(padded: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = torch.ones(2, TEXT, dtype=torch.long)
    mask[1, TEXT - padded :] = 0
    return {
        "input_ids": torch.randint(30, (2, TEXT)),
        "attention_mask": mask,
        "pixel_values": torch.randn(2, 3, 32, 32),
        "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long),
    }


def answer(model: Any, given: dict[str, Tensor]) -> Tensor:
    torch.manual_seed(4)  # it draws its patches in random order
    with torch.no_grad():
        return model(**given).logits


@pytest.mark.parametrize("tokens", ["all", "image", "text"])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("at", ["mlp", "msa", "both"])
def test_the_mean_of_a_set_reaches_that_set_alone(host: Any, tokens: Any, scaled: bool, at: Any) -> None:
    model = lively(enhance(host, ContextBroadcast(scaled, at=at, tokens=tokens, layers=(1,)))).eval()
    seen: dict[str, Tensor] = {}
    layer = model.vilt.encoder.layer[1]
    wrapped = layer.attention.output.dense if at == "msa" else layer.output.dense
    wrapped.host.register_forward_hook(lambda _, __, out: seen.update(before=out))
    wrapped.register_forward_hook(lambda _, __, out: seen.update(after=out))
    given = inputs(padded=2)
    answer(model, given)
    before, after = seen["before"], seen["after"]
    assert before.shape[1] == TEXT + 1 + SIDE * SIDE
    chosen = {"all": slice(None), "text": slice(TEXT), "image": slice(TEXT, None)}[tokens]
    kept = torch.cat((given["attention_mask"], torch.ones(2, 1 + SIDE * SIDE, dtype=torch.long)), dim=1)
    wanted = before.clone()
    for image in range(2):  # written out, image by image
        part = before[image, chosen]
        mean = part[kept[image, chosen] == 1].mean(0)
        wanted[image, chosen] = part + wrapped.new.inner.scale * mean if scaled else (part + mean) / 2
    torch.testing.assert_close(after, wanted)


def test_cbs_starts_as_the_host_and_padding_changes_nothing(host: Any) -> None:
    given = inputs(padded=2)
    model = enhance(host, ContextBroadcast(scaled=True, tokens="image"), preserve=True)
    assert error(answer(model, given), answer(host, given)) <= 1e-6
    model = lively(enhance(host, ContextBroadcast(scaled=True, at="both"))).eval()
    other = {**given, "input_ids": given["input_ids"].clone()}
    other["input_ids"][1, TEXT - 2 :] = 3
    torch.testing.assert_close(answer(model, other), answer(model, given))


def test_it_learns_is_copied_and_recomputes_with_the_sets_of_its_own_pass(host: Any) -> None:
    model = lively(enhance(host, ContextBroadcast(scaled=True, tokens="text"))).train()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    gradients = []
    for each, recompute in ((model, False), (twin, True)):
        if recompute:
            each.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(4)
        short = {
            **inputs(),
            "input_ids": inputs()["input_ids"][:, :3],
            "attention_mask": inputs()["attention_mask"][:, :3],
        }
        (each(**inputs(padded=2)).logits.square().mean() + each(**short).logits.square().mean()).backward()
        gradients.append({name: p.grad for name, p in each.named_parameters() if p.grad is not None})
    assert any(name.endswith("new.inner.scale") for name in gradients[0])
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_variants_are_written_on_one_line(host: Any) -> None:
    (mechanism,) = glocal.named("cbs(tokens=image)")
    assert mechanism == ContextBroadcast(scaled=True, tokens="image")
    assert len(enhance(host, mechanism).glocal.grafts) == 2


@pytest.mark.parametrize("mechanism", [LIFE(), LocalFFN(), EarlyMLP(layers="lower"), SqueezeContext()])
def test_what_needs_a_place_or_would_count_padding_is_refused(host: Any, mechanism: Any) -> None:
    with pytest.raises(GlocalError, match=type(mechanism).__name__):
        enhance(host, mechanism)


def test_places_and_sets_that_a_host_has_not_are_refused(host: Any) -> None:
    with pytest.raises(GlocalError, match="front"):
        enhance(host, ContextBroadcast(position="front"))
    with pytest.raises(GlocalError, match="no text tokens"):
        glocal.create_model("vit_tiny_patch16_224", ContextBroadcast(tokens="image"), img_size=32)
    with pytest.raises(GlocalError, match="'all', 'image' or 'text'"):
        ContextBroadcast(tokens="words")  # type: ignore[arg-type]
