"""Settings checked as a group: every fault of it at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from glocal.errors import GlocalError

Fault = tuple[tuple[str, ...], str]  # the keys it is about, and what is said


class SettingsError(GlocalError):
    """Settings that cannot be; every fault at once, each with the keys it is about."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(text for _, text in self.faults)


class Check:
    """Gathers the faults of one group of settings; what is not given is no fault."""

    def __init__(self, settings: object, group: str = "") -> None:
        self.settings, self.start = settings, f"{group}." if group else ""
        self.faults: list[Fault] = []

    def at_least(self, least: float, *names: str, strict: bool = False) -> None:
        """Ask for finite numbers from `least` on, or above it."""
        wanted = f"must be {'more than' if strict else 'at least'} {least}"
        for name in names:
            self._each(name, wanted, lambda value: value > least if strict else value >= least)

    def between(self, low: float, high: float, *names: str, why: str = "it lies") -> None:
        """Ask for numbers in a range, both ends allowed."""
        for name in names:
            self._each(name, "", lambda value: low <= value <= high, f"{why} between {low} and {high}")

    def refuse(self, text: str, *names: str) -> None:
        """Note a fault of its own words, and which settings it is about."""
        self.faults.append((tuple(self.start + name for name in names), text))

    def done(self) -> None:
        """Raise if there was a fault."""
        if self.faults:
            raise SettingsError(self.faults)

    def _each(self, name: str, wanted: str, right: Any, told: str = "") -> None:
        found = getattr(self.settings, name)
        listed: Sequence[Any] = () if found is None else found if isinstance(found, tuple) else (found,)
        if not all(isfinite(value) and right(value) for value in listed):
            self.refuse(f"{self.start}{name} is {found}; {told or f'it {wanted}'}.", name)
