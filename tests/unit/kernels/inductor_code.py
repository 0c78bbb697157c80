"""What inductor makes of compiled training, for a GPU that need not be there.

Where blocks differ in how the output of attention lies, and in that alone, one takes another's cuDNN graph for its own,
and gradients go wrong (benchmarks/NOTES.md). Run by test_inductor_code.py, in a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import glocal
from glocal.kernels import dispatch, multi_scale
from glocal.mechanisms import life
from glocal.optimize import TRAINING

BY_TOKEN = "(12480, 64, 192, 1)"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")


def _outputs(variant: str, **settings: object) -> list[str]:
    from attention_strides import strides  # pyright: ignore
    from without_gpu import training_code  # pyright: ignore

    mechanisms = () if variant == "host" else glocal.named(variant)
    words = {"img_size": 32, "patch_size": 4, "num_classes": 10, "depth": 2}
    model = glocal.create_model("deit_tiny_patch16_224", *mechanisms, **words).train()
    with dispatch.plain():
        code = training_code(model, torch.empty(256, 3, 32, 32), **settings)[1]
    return [call[-1] for call in strides(code)]


@pytest.mark.parametrize("variant", ["life", "local-ffn", "life+local-ffn+cbs"])
def test_compiled_training_lays_attention_out_alike_in_every_block(variant: str) -> None:
    assert _outputs(variant, **TRAINING) == [BY_TOKEN, BY_TOKEN]


def test_layout_optimisation_would_not() -> None:
    """The cause; should inductor mend it, compile_training may be plain torch.compile again."""
    last, first = _outputs("life", layout_optimization=True)
    assert last == BY_TOKEN
    assert first != last


def test_the_kernels_have_no_whole_gradient_written_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention gives three gradients, whose stack is 576 wide: a kernel's argument would be written out, each time."""
    from without_gpu import training_code  # pyright: ignore

    for module in (life, multi_scale):
        monkeypatch.setattr(module, "pays", lambda *_: True)
    words = {"img_size": 32, "patch_size": 4, "num_classes": 10, "depth": 1}
    model = glocal.create_model("deit_tiny_patch16_224", glocal.LIFE(), **words).train()
    backward = training_code(model, torch.empty(256, 3, 32, 32), **TRAINING)[1]
    assert backward.count("_convolve") >= 2
    assert "empty_strided_cuda((256, 65, 576)" not in backward
