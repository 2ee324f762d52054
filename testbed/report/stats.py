"""Summaries of repeated measurements. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Of a sample: count, mean, median, 95th percentile, extremes, and the mean's confidence interval.

    The interval is Student's, at 95 %; it is None below two values. All in the unit of the sample.
    """

    count: int
    mean: float
    median: float
    p95: float
    minimum: float
    maximum: float
    interval: tuple[float, float] | None

    def to_json(self) -> dict[str, object]:
        """The summary as the reports write it; the key's unit suffix is on the summary's own name."""
        return {
            "count": self.count,
            "mean": self.mean,
            "median": self.median,
            "p95": self.p95,
            "min": self.minimum,
            "max": self.maximum,
            "ci95": None if self.interval is None else list(self.interval),
        }


def percentile(values: Sequence[float], ratio: float) -> float:
    """The value below which `ratio` (0..1) of the sample lies, linear between neighbours.

    Raises:
        ValueError: the sample is empty or the ratio is out of range.
    """
    if not values:
        raise ValueError("percentile of an empty sample")
    if not 0 <= ratio <= 1:
        raise ValueError(f"percentile {ratio} is not within 0..1")
    ordered = sorted(values)
    position = ratio * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(values: Sequence[float], groups: Sequence[Sequence[float]] = ()) -> Summary | None:
    """Summarise a sample; None for an empty one.

    Args:
        values: every value.
        groups: the same values by repeat. Iterations of one repeat resemble each other, so with at least
            three repeats the interval is that of the repeats' means; otherwise that of the values.
    """
    if not values:
        return None
    means = [statistics.fmean(group) for group in groups if group]
    return Summary(
        count=len(values),
        mean=statistics.fmean(values),
        median=statistics.median(values),
        p95=percentile(values, 0.95),
        minimum=min(values),
        maximum=max(values),
        interval=_interval(means if len(means) >= 3 else values),
    )


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stdtrit(len(values) - 1, 0.5 + CONFIDENCE / 2))
    half *= statistics.stdev(values) / math.sqrt(len(values))
    return (mean - half, mean + half)
