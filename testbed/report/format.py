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


def interval(summary: Summary | None) -> str:
    """Half the width of the mean's confidence interval."""
    if summary is None or summary.interval is None:
        return NONE
    return f"±{seconds((summary.interval[1] - summary.interval[0]) / 2)}"
