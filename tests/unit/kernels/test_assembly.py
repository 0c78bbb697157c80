"""The kernels compile for a GPU that is not here: Triton brings its own assembler."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here")
def test_every_kernel_compiles_for_a_gpu_and_keeps_to_its_registers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import assembly

    for module in assembly.MODULES:
        monkeypatch.setattr(module, "wrap_triton", module.wrap_triton)  # put back afterwards
    monkeypatch.setattr(sys, "argv", ["assembly", "--batch", "256"])
    assembly.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    told = {line.split(": kernel ")[0] for line in lines}
    life, ffn = {"LIFE", "LIFE, one image", "LIFE, backward"}, {"LocalFFN", "LocalFFN, backward", "LocalFFN, folded"}
    assert told == life | ffn | {"LocalFFN, normalised", "LocalFFN, normalised, backward", "CB", "DTM"}
    assert not [line for line in lines if " stack " in line], "registers spill into memory"
