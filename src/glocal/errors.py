"""Errors a user can act on: what was found, what was wanted, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class GlocalError(Exception):
    """A mistake the user can mend; the command line prints it without a traceback and exits with 2."""


class LatticeError(GlocalError):
    """Tokens and the lattice they should sit on do not agree."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest the closest valid choice as a sentence that starts with a space, or nothing."""
    close = get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""
