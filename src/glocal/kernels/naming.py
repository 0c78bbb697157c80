"""The names of the kernels' operators, which change whenever the kernels' code does."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path


def operator_name(name: str) -> str:
    """Give an operator's full name.

    torch keeps what it compiled on disk and finds it by the names of a graph's operators, whatever these do by now: not
    all kernels, and no launch, are part of its key. So a name tells which code it stands for.
    """
    return f"glocal_{_code()}::{name}"


@cache
def _code() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(each.read_bytes() for each in files)).hexdigest()[:8]
