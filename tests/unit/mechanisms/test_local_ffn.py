"""LocalFFN on a processor: norms that stand still go into their convolutions, unless somebody looks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from glocal.lattice import Lattice
from glocal.mechanisms import local_ffn
from glocal.mechanisms.local_ffn import LocalFeedForward, LocalFFN

LATTICE = Lattice(3, 5, prefix=2)
KINDS: dict[str, dict[str, object]] = {
    "se": {},
    "eca, relu6": {"gate": "eca", "activation": "relu6"},
    "no gate, gelu": {"gate": "none", "activation": "gelu"},
    "without a depth-wise convolution": {"depthwise": False},
    "a depth-wise convolution of one tap": {"kernel": 1},
}


@pytest.fixture(autouse=True)
def _merged_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_ffn, "LARGE", 0)


def _network(name: str) -> LocalFeedForward:
    torch.manual_seed(0)
    config = LocalFFN(**KINDS[name])  # pyright: ignore[reportArgumentType]
    kernel = config.kernel if config.depthwise else 0
    act = local_ffn._ACTIVATIONS[config.activation]
    network = LocalFeedForward(12, 24, act=act, kernel=kernel, gate=config._gate(24))
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            for each in (part.running_mean, part.weight, part.bias):
                assert each is not None
                nn.init.normal_(each.detach())
            assert part.running_var is not None
            nn.init.uniform_(part.running_var, 0.5, 2)
    return network.eval()


def _tokens() -> Tensor:
    return torch.randn(2, len(LATTICE), 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", KINDS)
def test_merged_norms_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = _network(name).double(), _tokens().double()
    before = tokens.clone()
    assert network._mergeable(tokens) is False  # slopes may be asked for
    recorded = network(tokens, LATTICE).detach()
    state = {key: each.clone() for key, each in network.state_dict().items()}
    with torch.inference_mode():
        assert network._mergeable(tokens)
        torch.testing.assert_close(network(tokens, LATTICE), recorded, rtol=1e-12, atol=1e-12)
    assert torch.equal(tokens, before)
    assert all(torch.equal(each, state[key]) for key, each in network.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_whoever_listens_to_a_part_hears_what_it_gave(name: str) -> None:
    network = _network(name)
    with torch.inference_mode():
        silent = network(_tokens(), LATTICE)
        for path, part in list(network.named_children()):
            kept: list[tuple[Tensor, Tensor, Tensor]] = []
            handle = part.register_forward_hook(
                lambda _, given, out, kept=kept: kept.append((given[0], out, out.clone()))
            )
            torch.testing.assert_close(network(_tokens(), LATTICE), silent)
            handle.remove()
            assert len(kept) == 1, f"{path} was passed over"
            assert torch.equal(kept[0][1], kept[0][2]), f"what {path} gave was overwritten"


def test_small_maps_are_normalised_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokens = _network("se"), _tokens()
    with torch.inference_mode():
        assert network._mergeable(tokens)
        monkeypatch.undo()
        assert not network._mergeable(tokens)


def test_norms_that_move_or_miss_a_part_stay_as_they_are() -> None:
    network, tokens = _network("se"), _tokens()
    assert network.norm2 is not None
    with torch.inference_mode():
        assert network._mergeable(tokens)
        assert not network._mergeable(tokens.double())
        network.norm2.train()
        assert not network._mergeable(tokens)
        network.norm2.eval().running_mean = None
        assert not network._mergeable(tokens)
        network.norm2 = nn.BatchNorm2d(24, affine=False).eval()
        assert not network._mergeable(tokens)
