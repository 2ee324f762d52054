"""Two runs beside each other, as measured and predicted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.report.json_form import SCHEMA
from testbed.report.searches import PolicyComparison, compare_policies
from testbed.report.stats import Summary
from testbed.report.summary import RunResult


@dataclass(frozen=True)
class ComparisonRow:
    """One scheduler in both runs; means in seconds, ratios are B over A, None where a run lacks it."""

    scheduler: str
    synchronisation_a_s: float | None
    synchronisation_b_s: float | None
    synchronisation_ratio: float | None
    iteration_a_s: float | None
    iteration_b_s: float | None
    iteration_ratio: float | None
    speedup_a: float | None
    speedup_b: float | None


@dataclass(frozen=True)
class Comparison:
    """Two results, row by row, and what else differs between the two experiments."""

    a: RunResult
    b: RunResult
    rows: tuple[ComparisonRow, ...]
    differences: tuple[str, ...]
    policies: tuple[PolicyComparison, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether anything is in both runs."""
        both = any(self.a.find(result.scheduler) for result in self.b.schedulers)
        return both or any(row.stage_ratio is not None for row in self.policies)


def compare_runs(a: RunResult, b: RunResult) -> Comparison:
    """Set two results side by side, in A's order of schedulers, B's own ones last."""
    names = dict.fromkeys([result.scheduler for result in (*a.schedulers, *b.schedulers)])
    rows = tuple(_row(name, a, b) for name in names)
    return Comparison(a, b, rows, differences(a, b), compare_policies(a.policies, b.policies))


def _row(name: str, a: RunResult, b: RunResult) -> ComparisonRow:
    in_a, in_b = a.find(name), b.find(name)
    synchronisation_a = _mean(in_a.synchronisation if in_a else None)
    synchronisation_b = _mean(in_b.synchronisation if in_b else None)
    iteration_a = _mean(in_a.iteration if in_a else None)
    iteration_b = _mean(in_b.iteration if in_b else None)
    return ComparisonRow(
        scheduler=name,
        synchronisation_a_s=synchronisation_a,
        synchronisation_b_s=synchronisation_b,
        synchronisation_ratio=_ratio(synchronisation_a, synchronisation_b),
        iteration_a_s=iteration_a,
        iteration_b_s=iteration_b,
        iteration_ratio=_ratio(iteration_a, iteration_b),
        speedup_a=in_a.speedup if in_a else None,
        speedup_b=in_b.speedup if in_b else None,
    )


def differences(a: RunResult, b: RunResult) -> tuple[str, ...]:
    """What the two resolved experiments do not share, as `training.batch: 32, 64`; names are left out."""
    flat_a, flat_b = _flatten(a.manifest.experiment), _flatten(b.manifest.experiment)
    return tuple(
        f"{key}: {flat_a.get(key, 'absent')}, {flat_b.get(key, 'absent')}"
        for key in sorted(flat_a.keys() | flat_b.keys())
        if key != "name" and flat_a.get(key) != flat_b.get(key)
    )


def comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as `testbed compare --format json` prints it."""
    return {
        "schema": SCHEMA,
        "a": {
            "id": comparison.a.manifest.id,
            "path": comparison.a.path,
            "world": comparison.a.manifest.world,
        },
        "b": {
            "id": comparison.b.manifest.id,
            "path": comparison.b.path,
            "world": comparison.b.manifest.world,
        },
        "schedulers": [
            {
                "scheduler": row.scheduler,
                "synchronisation_a_s": row.synchronisation_a_s,
                "synchronisation_b_s": row.synchronisation_b_s,
                "synchronisation_ratio": row.synchronisation_ratio,
                "iteration_a_s": row.iteration_a_s,
                "iteration_b_s": row.iteration_b_s,
                "iteration_ratio": row.iteration_ratio,
                "speedup_a_ratio": row.speedup_a,
                "speedup_b_ratio": row.speedup_b,
            }
            for row in comparison.rows
        ],
        "policies": [row.to_json() for row in comparison.policies],
        "differences": list(comparison.differences),
    }


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _mean(summary: Summary | None) -> float | None:
    return summary.mean if summary else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b is not None else None
