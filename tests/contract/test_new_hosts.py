"""The contract of every mechanism, on the hosts that glocal brings itself: PVT v1, LIT and T2T-ViT.

They pool the mean token here, so that every parameter of the last block matters; class tokens have their own test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.layers import DropPath
from torch import nn

from glocal import DTM, LIFE, ContextBroadcast, ConvStem, EarlyMLP, GlocalError, LocalFFN, enhance
from glocal.mechanisms import build
from glocal.models import LIT, PyramidVisionTransformer, T2TViT
from glocal.site import Mechanism
from tests.contract import cases, test_grafts, test_lifecycle
from tests.contract.cases import MECHANISMS, PRESERVING, Host, error, host, images, lively

_PYRAMID: dict[str, Any] = {
    "img_size": 32,
    "depths": (1, 2),
    "dims": (12, 24),
    "heads": (1, 2),
    "mlp_ratios": (2, 2),
    "num_classes": 5,
    "global_pool": "avg",
}
_PVT = {**_PYRAMID, "sr_ratios": (2, 1), "attention_stages": (0, 1)}
_T2T = {"img_size": 32, "small": True, "token_dim": 12, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
_HEADS = frozenset({"uniform_a", "uniform_b"})
_EARLY = frozenset({"early_mlp", "early_layers"})

NEW = {
    "pvt": Host(partial(PyramidVisionTransformer, **_PVT), _HEADS | {"life"}, frozenset({"life"}), resize="free"),
    "pvt_msa": Host(partial(PyramidVisionTransformer, **_PVT, standard=True), _HEADS, resize="free"),
    "lit": Host(
        partial(LIT, **_PYRAMID, attention_stages=(1,)),
        _HEADS | _EARLY | {"dtm", "no_positions"},
        frozenset({"dtm"}),
        resize="free",
    ),
    "lit_star": Host(
        partial(LIT, **_PYRAMID, attention_stages=(1,), deformable=False),
        _HEADS | _EARLY | {"no_positions"},
        resize="free",
    ),
    "lit_absolute_star": Host(
        partial(LIT, **_PYRAMID, attention_stages=(1,), relative=False, deformable=False), _EARLY, resize="free"
    ),
    "t2t": Host(
        partial(T2TViT, **_T2T, global_pool="avg"),
        frozenset({"dtm", "early_mlp", "conv_stem", "no_positions"}),
        frozenset({"dtm"}),
        resize="free",
    ),
}
MIXTURES: dict[str, tuple[Mechanism, ...]] = {
    "pvt": (LocalFFN(), ContextBroadcast(), DTM(), EarlyMLP(stages=(0,)), ConvStem()),
    "pvt_msa": (LIFE(layers="upper"), LocalFFN(), ContextBroadcast(), DTM(), EarlyMLP(stages=(0,))),
    "lit": (LIFE(), LocalFFN(), ContextBroadcast()),
    "lit_star": (LIFE(), LocalFFN(), ContextBroadcast(at="both"), DTM(), ConvStem()),
    "lit_absolute_star": (LIFE(), LocalFFN(), ContextBroadcast(scaled=True), DTM()),
    "t2t": (LIFE(), LocalFFN(), ContextBroadcast(), LocalFFN(at="tokeniser", gate="none")),
}
PAIRS = [(name, key) for name, case in NEW.items() for key in MECHANISMS if key not in case.refuses]
KEPT = [(name, key) for name, case in NEW.items() for key in PRESERVING if key not in case.refuses_preserving]
REFUSED = [(name, key) for name, case in NEW.items() for key in MECHANISMS if key in case.refuses]


@pytest.fixture(autouse=True, scope="module")
def _among_the_hosts() -> Iterator[None]:
    cases.HOSTS.update(NEW)
    test_lifecycle.ALL.update(MIXTURES)
    yield
    for name in NEW:
        del cases.HOSTS[name], test_lifecycle.ALL[name]


def claims(*functions: Callable[..., None]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("claim", functions, ids=[each.__name__ for each in functions])


@claims(test_grafts.test_a_graft_runs_forward_and_backward, test_grafts.test_every_new_parameter_changes_the_output)
@pytest.mark.parametrize("name, mechanism", PAIRS)
def test_every_mechanism_that_fits(claim: Callable[..., None], name: str, mechanism: str) -> None:
    claim(name, mechanism)


@pytest.mark.parametrize("name, mechanism", PAIRS)
def test_a_graft_survives_copying_saving_and_folding(name: str, mechanism: str, tmp_path: Path) -> None:
    test_grafts.test_a_graft_survives_copying_saving_and_folding(name, mechanism, tmp_path)


@claims(
    test_grafts.test_preserve_keeps_the_hosts_outputs,
    test_grafts.test_every_new_parameter_of_a_preserving_graft_changes_the_output,
    test_grafts.test_the_plain_hosts_checkpoint_loads_into_a_preserving_graft,
)
@pytest.mark.parametrize("name, mechanism", KEPT)
def test_every_mechanism_that_preserves(claim: Callable[..., None], name: str, mechanism: str) -> None:
    claim(name, mechanism)


@pytest.mark.parametrize("name, mechanism", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str, mechanism: str) -> None:
    test_grafts.test_what_does_not_fit_is_refused_by_name(name, mechanism)


@claims(
    test_lifecycle.test_the_order_of_arguments_does_not_matter,
    test_lifecycle.test_a_host_takes_mechanisms_one_after_the_other,
    test_lifecycle.test_new_and_non_square_sizes,
    test_lifecycle.test_one_graph_without_breaks,
    test_lifecycle.test_mixed_precision_trains,
    test_lifecycle.test_half_precision_weights_run,
    test_lifecycle.test_the_hosts_own_calls_still_work,
)
@pytest.mark.parametrize("name", NEW)
def test_a_mixture_of_mechanisms(claim: Callable[..., None], name: str) -> None:
    claim(name)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("preserve", [False, True])
def test_recomputation_uses_the_lattice_of_its_own_image(name: str, preserve: bool) -> None:
    mechanisms = (LocalFFN(),) if name == "pvt" else (LIFE(), LocalFFN())
    model = lively(enhance(host(name), *mechanisms, preserve=preserve)).train()
    for each in model.modules():
        if isinstance(each, (nn.BatchNorm2d, nn.Dropout, DropPath)):
            each.eval()
    for first, second in (((32, 32), (48, 48)), ((32, 64), (64, 32))):
        pair = torch.randn(2, 3, *first), torch.randn(2, 3, *second)
        wanted, got = test_lifecycle._gradients(model, pair, False), test_lifecycle._gradients(model, pair, True)
        assert wanted.keys() == got.keys()
        assert all(torch.allclose(got[key], wanted[key], atol=1e-6) for key in wanted), (first, second)


def test_local_ffn_in_the_tokeniser_can_preserve_and_is_refused_elsewhere() -> None:
    plain, x = host("t2t"), images("t2t")
    model = enhance(plain, LocalFFN(at="tokeniser"), preserve=True)
    assert [graft.path for graft in model.glocal.grafts] == [f"tokens_to_token.attention{i}.mlp" for i in (1, 2)]
    with torch.no_grad():
        assert error(model(x), plain(x)) <= 1e-6
        lively(model)
        assert error(model(x), plain(x)) > 1e-3
    with pytest.raises(GlocalError, match="no tokeniser"):
        enhance(host("pvt"), LocalFFN(at="tokeniser"))
    with pytest.raises(GlocalError, match="use 'blocks' or 'tokeniser'"):
        LocalFFN(at="tokenizer")  # pyright: ignore[reportArgumentType]
    assert build("local_ffn", {"at": "tokeniser", "gate": "none"}) == LocalFFN(at="tokeniser", gate="none")


@pytest.mark.parametrize("kind", [PyramidVisionTransformer, T2TViT])
def test_a_class_token_bypasses_the_local_network_and_hears_the_broadcast(kind: type[nn.Module]) -> None:
    shape = _PVT if kind is PyramidVisionTransformer else _T2T
    plain = lively(kind(**{**shape, "global_pool": "token"})).eval()
    model = lively(enhance(plain, LocalFFN())).eval()
    last = (model.stages[-1] if hasattr(model, "stages") else model).blocks[-1]
    seen: list[torch.Tensor] = []
    last.mlp.register_forward_hook(lambda module, args, output: seen.append(output))
    x = torch.randn(2, 3, 32, 48)
    model(x)
    assert not seen[0][:, 0].any()
    assert seen[0][:, 1:].any()
    heard = enhance(model, ContextBroadcast(layers="all"))
    assert not torch.allclose(heard(x), model(x))


def test_pvt_with_standard_attention_early_mlp_and_dtm_is_lit() -> None:
    shape = {**_PYRAMID, "global_pool": "token"}
    pvt = PyramidVisionTransformer(**shape, standard=True, attention_stages=(0, 1))
    grafted = enhance(pvt, EarlyMLP(stages=(0,)), DTM()).eval()
    lit = lively(LIT(**shape, relative=False, attention_stages=(1,))).eval()
    assert grafted.state_dict().keys() == lit.state_dict().keys()
    grafted.load_state_dict(lit.state_dict())
    x = torch.randn(2, 3, 40, 32)
    assert torch.equal(grafted(x), lit(x))


def count(model: nn.Module, trainable: bool = False) -> int:
    return sum(each.numel() for each in model.parameters() if each.requires_grad or not trainable)


# LIT Tables 3-5, LIFE Table 1, LocalViT Table 5; LocalViT's and LIFE's figures are of the trainable parameters.
COUNTED: dict[str, tuple[str, dict[str, Any], tuple[Mechanism, ...], int, bool]] = {
    "PVT-S + DTM": ("pvt_small", {}, (DTM(),), 24_502_272, False),
    "LIT-Ti* + DTM is LIT-Ti": ("lit_tiny_star", {}, (DTM(),), 19_886_272, False),
    "LIT-S* + DTM is LIT-S": ("lit_small_star", {}, (DTM(),), 27_973_720, False),
    "PVT-S with MSA, removed 1": ("pvt_small_msa", {}, (EarlyMLP(stages=(0,)),), 20_135_080, False),
    "PVT-S with MSA, removed 1,2 is LIT-Ti*": ("pvt_small_msa", {}, (EarlyMLP(),), 19_869_864, False),
    "PVT-S with MSA, removed 1-4": ("pvt_small_msa", {}, (EarlyMLP(stages=(0, 1, 2, 3)),), 14_245_800, False),
    "T2T-ViT-12-LIFE": ("t2t_vit_12_252", {"num_classes": 100}, (LIFE(),), 6_563_738, True),
    "LocalViT-T2T": (
        "t2t_vit_7",
        {"idle_norm": True},
        (LocalFFN(), LocalFFN(at="tokeniser", gate="none")),
        4_330_858,
        True,
    ),
}


@pytest.mark.parametrize("row", COUNTED)
def test_grafted_models_have_the_papers_parameters(row: str) -> None:
    name, arguments, mechanisms, wanted, trainable = COUNTED[row]
    with torch.device("meta"):
        model = enhance(timm.create_model(name, **arguments), *mechanisms, inplace=True)
    assert count(model, trainable) == wanted
