"""The kernels under Triton's interpreter, which must be on before Triton is imported: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

CASES = Path(__file__).parents[2] / "properties" / "test_kernels.py"


def _fits_numpy() -> bool:
    """Tell whether the interpreter takes this numpy: before 3.9 it makes numbers of arrays as numpy 2.4 forbids."""
    found = find_spec("triton.runtime.interpreter") if find_spec("triton") else None
    source = Path(found.origin).read_text() if found and found.origin else ""
    return np.lib.NumpyVersion(np.__version__) < "2.4.0" or "int(self.handle.data))" not in source


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not here")
@pytest.mark.skipif(not _fits_numpy(), reason="this Triton's interpreter wants numpy before 2.4")
def test_kernels_give_the_numbers_of_plain_pytorch() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(CASES)]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "30 passed" in done.stdout
