"""The kernels under Triton's interpreter, which must be on before Triton is imported: a process of its own."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch._library.triton

CASES = Path(__file__).parents[2] / "properties" / "test_kernels.py"


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here")
@pytest.mark.skipif(
    "InterpretedFunction" not in inspect.getsource(torch._library.triton),
    reason="this torch takes no interpreted kernel",
)
def test_kernels_give_the_numbers_of_plain_pytorch() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(CASES)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "30 passed" in done.stdout
