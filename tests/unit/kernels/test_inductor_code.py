"""Cases that pretend there is a GPU, which torch remembers: a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).with_name("inductor_code.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here")
@pytest.mark.skipif(torch.__version__ < (2, 11), reason="before torch 2.11 inductor asks more of a GPU")
def test_what_inductor_makes_of_compiled_training() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(CASES)]
    told = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=400, check=False)
    assert told.returncode == 0, told.stdout[-3000:]
    assert "5 passed" in told.stdout
