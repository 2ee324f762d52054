"""The result of searches as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table

from testbed.report.format import NONE, interval, seconds
from testbed.report.searches import PolicyComparison, PolicyResult
from testbed.report.stats import Summary


def _mean(summary: Summary | None) -> str:
    return seconds(None if summary is None else summary.mean)


def _relative(row: PolicyResult) -> str:
    """With its interval, where there are repeats to have one of."""
    found = row.first_ratio
    if found is None:
        return NONE
    half = "" if found.interval is None else f" ±{(found.interval[1] - found.interval[0]) / 2:.2f}"
    return f"{found.mean:.2f}{half}"


def _busiest(row: PolicyResult) -> str:
    return NONE if row.busiest is None else f"{row.busiest[0]}>{row.busiest[1]} {row.busiest[2]:.0%}"


COLUMNS: tuple[tuple[str, Callable[[PolicyResult], str]], ...] = (
    ("turns", lambda row: str(row.completed_turns)),
    ("stages", lambda row: str(0 if row.stage is None else row.stage.count)),
    ("SCT mean s", lambda row: _mean(row.stage)),
    ("95 % CI", lambda row: interval(row.stage)),
    ("p95", lambda row: seconds(None if row.stage is None else row.stage.p95)),
    ("x first", _relative),
    ("x bound", lambda row: NONE if row.bound_ratio is None else f"{row.bound_ratio:.2f}"),
    ("JCT s", lambda row: _mean(row.job)),
    ("CCT s", lambda row: _mean(row.coflow)),
    ("gate wait s", lambda row: seconds(row.gate_wait_s)),
    ("makespan s", lambda row: _mean(row.makespan)),
    ("links", lambda row: NONE if row.mean_utilisation is None else f"{row.mean_utilisation:.0%}"),
    ("busiest link", _busiest),
    ("best loss", lambda row: NONE if row.best_score is None else f"{row.best_score:.4f}"),
)


def policy_table(policies: Sequence[PolicyResult]) -> Table:
    """One row a policy."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy", no_wrap=True)
    for name, _ in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in policies:
        table.add_row(row.policy, *(cell(row) for _, cell in COLUMNS))
    return table


COMPARISON_COLUMNS: tuple[str, ...] = ("A SCT s", "B SCT s", "B / A", "JCT B / A", "CCT B / A", "makespan B / A")


def comparison_cells(row: PolicyComparison) -> list[str]:
    """One policy in two runs, under `COMPARISON_COLUMNS`."""
    ratios = (row.stage_ratio, row.job_ratio, row.coflow_ratio, row.makespan_ratio)
    cells = [NONE if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return [seconds(row.stage_a_s), seconds(row.stage_b_s), *cells]


def policy_comparison(rows: Sequence[PolicyComparison]) -> Table:
    """Two runs side by side, one row a policy of either."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("policy", no_wrap=True)
    for name in COMPARISON_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.policy, *comparison_cells(row))
    return table
