"""Whether something grows: a straight line through samples by least squares, with its confidence interval. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Point = tuple[float, float]
"""Time (in the unit that the slope is to be per) and value."""

BLOCKS: Final = 45
"""Means that are taken of a series at most: what is sampled often does not vary independently."""

_Z: Final = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Trend:
    """A slope; with 95 % confidence it is within `half` of it."""

    slope: float
    half: float

    @property
    def most(self) -> float:
        """The upper end of the interval."""
        return self.slope + self.half

    @property
    def least(self) -> float:
        """The lower end."""
        return self.slope - self.half

    def __str__(self) -> str:
        return f"{self.slope:+.2f} ± {self.half:.2f}"


def trend(points: Sequence[Point]) -> Trend:
    """The slope of the means of up to `BLOCKS` stretches of a series. ValueError for less than four points."""
    if len(points) < 4:
        raise ValueError(f"{len(points)} points say nothing about a trend")
    means = blocks(points, BLOCKS)
    times, values = zip(*means, strict=True)
    slope, intercept = statistics.linear_regression(times, values)
    rest = sum((value - intercept - slope * time) ** 2 for time, value in means)
    middle = statistics.fmean(times)
    spread = sum((time - middle) ** 2 for time in times)
    return Trend(slope, student(len(means) - 2) * math.sqrt(rest / (len(means) - 2) / spread))


def blocks(points: Sequence[Point], most: int) -> list[Point]:
    """The means of so many stretches of equal length at most, the oldest points left out if they do not come out even.

    Each has four points or less, or there are `most` of them.
    """
    size = max(1, len(points) // most)
    begin = len(points) % size
    return [
        (statistics.fmean(time for time, _ in part), statistics.fmean(value for _, value in part))
        for part in (points[at : at + size] for at in range(begin, len(points), size))
    ]


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution, by Fisher's expansion: from 4 degrees on right within 1 %."""
    z, v = _Z, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
