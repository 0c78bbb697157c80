from __future__ import annotations

import pytest

from glocal import LIFE, ContextBroadcast, EarlyMLP, GlocalError, LocalFFN, named, spelled
from glocal.mechanisms import build, describe


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("life", (LIFE(),)),
        ("local-ffn+cb", (LocalFFN(), ContextBroadcast())),
        ("local_ffn + cbs", (LocalFFN(), ContextBroadcast(scaled=True))),
        ("life@4-11", (LIFE(layers="4-11"),)),
        ("local-ffn(gate=eca,expansion=6)@low", (LocalFFN(gate="eca", expansion=6, layers="low"),)),
        ("life(kernels=(1,3,5,7), widths=[8,8,8,8])", (LIFE((1, 3, 5, 7), (8, 8, 8, 8)),)),
        ("life(kernels=3)", (LIFE(kernels=(3,)),)),
        ("early-mlp(stages=0)+cb@all", (EarlyMLP(stages=(0,)), ContextBroadcast(layers="all"))),
        ("LIFE", (LIFE(),)),
    ],
)
def test_variants_read_as_written(text: str, wanted: tuple) -> None:
    assert named(text) == wanted


@pytest.mark.parametrize(
    "text, message",
    [
        ("lfie", "Did you mean 'life'?"),
        ("life(kernel=3)", "Did you mean 'kernels'?"),
        ("life(kernels=(2,))", "must be odd"),
        ("life(kernels=abc)", "list of whole numbers"),
        ("cb(scaled=maybe)", "true or false"),
        ("local-ffn(gate=sse)", "'se', 'eca' or 'none'"),
        ("local-ffn(kernel", "parentheses"),
        ("local-ffn(kernel)", "option=value"),
        ("", "cannot read mechanism"),
        ("life++cb", "cannot read mechanism"),
        ("cb(at=mpl)", "'mlp', 'msa' or 'both'"),
        ("uniform-head(variant=d)", "'a', 'b' or 'c'"),
        ("dtm@low", "unknown option 'layers'"),
    ],
)
def test_slips_are_named_with_the_nearest_choice(text: str, message: str) -> None:
    with pytest.raises(GlocalError) as caught:
        named(text)
    assert message in str(caught.value)


def test_a_mechanism_survives_json() -> None:
    import json

    for each in named("life(kernels=(1,3))@0,2+local-ffn(depthwise=false)+cbs+dtm+conv-stem(positions=false)"):
        options = json.loads(json.dumps(describe(each)))
        assert build(options.pop("name"), options) == each


def test_the_shortest_spelling_is_used() -> None:
    assert spelled(ContextBroadcast(scaled=True, layers=(0, 1))) == "cbs@0,1"
    assert spelled(LIFE(), LocalFFN(expansion=6)) == "life+local-ffn(expansion=6)"
