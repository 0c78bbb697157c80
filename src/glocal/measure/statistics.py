"""How sure a figure is: spread over seeds, and the interval of a gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; without an interval where one run tells nothing about spread."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f}"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample, or nothing for a single value."""
    return stdev(values) if len(values) > 1 else None


def gain(base: Sequence[float], other: Sequence[float]) -> Estimate:
    """Estimate how much better `other` is, run by run: both lists are in the same order of seeds.

    Runs of one seed share data order and augmentation, so their differences are compared (Student's t).
    """
    assert len(base) == len(other)
    differences = [after - before for before, after in zip(base, other, strict=True)]
    mean = fmean(differences)
    if len(differences) < 2:
        return Estimate(mean)
    from scipy.stats import t

    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
    return Estimate(mean, mean - half, mean + half)
