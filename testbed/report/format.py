"""Numbers as the reports print them. Pure."""

from __future__ import annotations

from testbed.report.stats import Summary

NONE = "-"


def seconds(value: float | None) -> str:
    """A time with three significant digits, never in exponents."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def with_interval(summary: Summary | None) -> str:
    """A mean with half the width of its confidence interval, as `1.33 ±0.02`."""
    if summary is None:
        return NONE
    half = interval(summary)
    return seconds(summary.mean) + (f" {half}" if half != NONE else "")


def reached(summary: Summary | None, count: int, repeats: int) -> str:
    """A time to an accuracy, with the number of repeats that reached it where not all did."""
    if not count:
        return "not reached"
    found = with_interval(summary)
    return found if count == repeats else f"{found} in {count} of {repeats}"


def interval(summary: Summary | None) -> str:
    """Half the width of the mean's confidence interval."""
    if summary is None or summary.interval is None:
        return NONE
    return f"±{seconds((summary.interval[1] - summary.interval[0]) / 2)}"
