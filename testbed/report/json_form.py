"""A run's result as `testbed report --format json` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.report.searches import policy_to_json
from testbed.report.stats import Summary
from testbed.report.summary import RunResult, SchedulerResult

SCHEMA = 1


def result_to_json(result: RunResult) -> dict[str, Any]:
    """The report as `testbed report --format json` prints it."""
    manifest = result.manifest
    return {
        "schema": SCHEMA,
        "run": {
            "id": manifest.id,
            "name": manifest.name,
            "path": result.path,
            "world": manifest.world,
            "status": manifest.status,
            "failure": manifest.failure.model_dump(mode="json") if manifest.failure else None,
            "topology": manifest.topology,
            "scale_ratio": manifest.scale,
            "sites": len({worker.site for worker in manifest.workers}),
            "workers": len(manifest.workers),
            "started_s": manifest.started_s,
            "finished_s": manifest.finished_s,
        },
        "fidelity": result.fidelity.model_dump(mode="json"),
        "accuracy_target_ratio": result.accuracy_target,
        "schedulers": [_scheduler_to_json(scheduler) for scheduler in result.schedulers],
        "decisions": [counts.to_json() for counts in result.decisions],
        "policies": [policy_to_json(policy) for policy in result.policies],
        "overhead": [spent.to_json() for spent in result.overhead],
        "problems": list(result.problems),
    }


def _scheduler_to_json(result: SchedulerResult) -> dict[str, Any]:
    busiest: Mapping[str, Any] | None = None
    if result.busiest is not None:
        busiest = {
            "src": result.busiest.src,
            "dst": result.busiest.dst,
            "utilisation_ratio": result.busiest.utilisation_ratio,
        }
    return {
        "scheduler": result.scheduler,
        "elements": result.elements,
        "repeats": result.repeats,
        "completed_repeats": result.completed_repeats,
        "measured_iterations": result.measured,
        "warmup_iterations": result.warmup,
        "synchronisation_s": result.synchronisation.to_json() if result.synchronisation else None,
        "first_synchronisation_s": list(result.first_synchronisation_s),
        "iteration_s": result.iteration.to_json() if result.iteration else None,
        "idle_s": result.idle.to_json() if result.idle else None,
        "idle_of_workers_s": dict(result.idle_of),
        "carried_bytes_per_iteration": result.carried_bytes_per_iteration,
        "carried_bytes_per_iteration_ci95": _interval_of(result.carried_bytes),
        "time_to_accuracy_s": result.time_to_accuracy.to_json() if result.time_to_accuracy else None,
        "reached_repeats": result.reached,
        "dropped_packets": result.dropped_packets,
        "busiest_link": busiest,
        "speedup_ratio": result.speedup,
        "bound_s": result.bound_s,
        "bound_ratio": result.bound_multiple,
        "bound_ratio_ci95": None if (ratio := result.bound_multiple_interval) is None else list(ratio),
        "loss": result.loss,
        "accuracy_ratio": result.accuracy,
        "parameters": {
            "agree": result.parameters_agree,
            "sha256": list(result.parameters_sha256),
            "disagreeing": list(result.disagreeing),
        },
        "sums_checked": result.sums_checked,
    }


def _interval_of(summary: Summary | None) -> list[float] | None:
    return None if summary is None or summary.interval is None else list(summary.interval)
