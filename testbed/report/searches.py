"""What a run of searches came to, policy by policy. Pure but for reading the files.

Definitions, on the run's one clock:

- stage completion time (SCT): from a stage's start to the end of its last trial; of searches without barrier a stage
  is one trial;
- job completion time (JCT): the same of one trial in a stage;
- coflow completion time (CCT): from the last site being ready to the last site having all results;
- gate wait: the mean time that a chunk waited at its sender, over all chunks;
- x bound: the sum of all SCT over the sum of what each stage needs alone on the network, which no order can beat;
- x first: mean SCT relative to the first policy's, repeat by repeat on the same searches; its interval is of the
  repeats' ratios;
- 95 % interval: Student's, of the repeats' means; there is none below two repeats.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.experiments.manifest import Manifest
from testbed.report.measurements import LinkSample
from testbed.report.stats import Summary, summarise
from testbed.searches.records import CoflowRow, StageRow, TrialRow, read_rows


@dataclass(frozen=True)
class SearchMeasurements:
    """The rows of `stages.csv`, `trials.csv` and `coflows.csv`."""

    stages: tuple[StageRow, ...]
    trials: tuple[TrialRow, ...]
    coflows: tuple[CoflowRow, ...]


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all its turns. Times in seconds."""

    policy: str
    turns: int
    completed_turns: int
    barrier: bool
    stage: Summary | None
    job: Summary | None
    coflow: Summary | None
    gate_wait_s: float | None
    makespan: Summary | None
    bound_ratio: float | None
    first_ratio: Summary | None
    busiest: tuple[str, str, float] | None
    mean_utilisation: float | None
    best_score: float | None


def read_searches(directory: Path, problems: list[str]) -> SearchMeasurements:
    return SearchMeasurements(
        read_rows(directory, StageRow, problems),
        read_rows(directory, TrialRow, problems),
        read_rows(directory, CoflowRow, problems),
    )


def has_searches(manifest: Manifest) -> bool:
    """Whether the run is of searches."""
    return bool(manifest.experiment.get("tuners"))


def summarise_searches(
    manifest: Manifest, found: SearchMeasurements, links: Sequence[LinkSample]
) -> tuple[PolicyResult, ...]:
    """Every policy in the order of the file."""
    names = list(dict.fromkeys(segment.scheduler for segment in manifest.segments))
    means = {name: _means(manifest, found, name) for name in names}
    return tuple(_summarise(manifest, found, links, name, means[name], means[names[0]]) for name in names)


def _means(manifest: Manifest, found: SearchMeasurements, name: str) -> dict[int, float]:
    """Mean SCT of each completed turn, by its repeat."""
    means = {}
    for segment in manifest.segments:
        times = [row.sct_s for row in found.stages if row.segment == segment.label]
        if segment.scheduler == name and segment.status == "completed" and times:
            means[segment.repeat] = statistics.fmean(times)
    return means


def _summarise(
    manifest: Manifest,
    found: SearchMeasurements,
    links: Sequence[LinkSample],
    name: str,
    means: Mapping[int, float],
    first: Mapping[int, float],
) -> PolicyResult:
    segments = [segment for segment in manifest.segments if segment.scheduler == name]
    labels = [segment.label for segment in segments]
    stages = [row for row in found.stages if row.segment in labels]
    trials = [row for row in found.trials if row.segment in labels]
    coflows = [row for row in found.coflows if row.segment in labels]
    ratios = [means[repeat] / first[repeat] for repeat in sorted(means) if first.get(repeat)]
    spans = [
        max(row.end_s for row in rows) - min(row.start_s for row in rows)
        for label in labels
        if (rows := [row for row in stages if row.segment == label])
    ]
    alone = sum(row.alone_s for row in stages)
    chunks = sum(row.chunks for row in coflows)
    used = _utilisation([sample for sample in links if sample.segment in labels])
    scores = [row.score for row in trials if row.score is not None]
    return PolicyResult(
        policy=name,
        turns=len(segments),
        completed_turns=sum(segment.status == "completed" for segment in segments),
        barrier=all(row.barrier for row in stages),
        stage=_grouped(labels, stages, lambda row: row.sct_s),
        job=_grouped(labels, trials, lambda row: row.jct_s),
        coflow=_grouped(labels, coflows, lambda row: row.cct_s),
        gate_wait_s=sum(row.gate_wait_s * row.chunks for row in coflows) / chunks if chunks else None,
        makespan=summarise(spans),
        bound_ratio=sum(row.sct_s for row in stages) / alone if alone else None,
        first_ratio=summarise(ratios),
        busiest=max(((src, dst, ratio) for (src, dst), ratio in used.items()), key=lambda e: e[2], default=None),
        mean_utilisation=statistics.fmean(used.values()) if used else None,
        best_score=min(scores, default=None),
    )


def _grouped(labels: Sequence[str], rows: Sequence[Any], time_of: Callable[[Any], float]) -> Summary | None:
    groups = [[time_of(row) for row in rows if row.segment == label] for label in labels]
    summary = summarise([time for group in groups for time in group])
    if summary is None:
        return None
    # The times within a repeat are of different rungs: no sample of anything that has an interval.
    repeats = summarise([statistics.fmean(group) for group in groups if group])
    return replace(summary, interval=None if repeats is None else repeats.interval)


def _utilisation(samples: Sequence[LinkSample]) -> dict[tuple[str, str], float]:
    """What each directed link carried of what its rate allowed."""
    could: dict[tuple[str, str], float] = {}
    did: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = sample.src, sample.dst
        could[key] = could.get(key, 0.0) + sample.configured_bps * sample.interval_s
        did[key] = did.get(key, 0.0) + sample.carried_bytes * 8
    return {key: did[key] / could[key] for key in could if could[key] > 0}


def policy_to_json(result: PolicyResult) -> dict[str, Any]:
    """As `testbed report --format json` prints it."""

    def plain(summary: Summary | None) -> dict[str, object] | None:
        return None if summary is None else summary.to_json()

    busiest = result.busiest
    return {
        "policy": result.policy,
        "turns": result.turns,
        "completed_turns": result.completed_turns,
        "barrier": result.barrier,
        "stage_completion_s": plain(result.stage),
        "job_completion_s": plain(result.job),
        "coflow_completion_s": plain(result.coflow),
        "gate_wait_s": result.gate_wait_s,
        "makespan_s": plain(result.makespan),
        "bound_ratio": result.bound_ratio,
        "first_ratio": plain(result.first_ratio),
        "busiest_link": None
        if busiest is None
        else {"src": busiest[0], "dst": busiest[1], "utilisation_ratio": busiest[2]},
        "mean_utilisation_ratio": result.mean_utilisation,
        "best_score": result.best_score,
    }


@dataclass(frozen=True)
class PolicyComparison:
    """One policy in two runs; means in seconds, ratios are B over A, None where a run lacks it."""

    policy: str
    stage_a_s: float | None
    stage_b_s: float | None
    stage_ratio: float | None
    job_ratio: float | None
    coflow_ratio: float | None
    makespan_ratio: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "stage_completion_a_s": self.stage_a_s,
            "stage_completion_b_s": self.stage_b_s,
            "stage_completion_ratio": self.stage_ratio,
            "job_completion_ratio": self.job_ratio,
            "coflow_completion_ratio": self.coflow_ratio,
            "makespan_ratio": self.makespan_ratio,
        }


def compare_policies(a: Sequence[PolicyResult], b: Sequence[PolicyResult]) -> tuple[PolicyComparison, ...]:
    """In A's order, B's own ones last."""
    in_a, in_b = ({row.policy: row for row in rows} for rows in (a, b))
    return tuple(_compare(name, in_a.get(name), in_b.get(name)) for name in dict.fromkeys([*in_a, *in_b]))


def _compare(name: str, a: PolicyResult | None, b: PolicyResult | None) -> PolicyComparison:
    def mean(row: PolicyResult | None, what: str) -> float | None:
        summary: Summary | None = None if row is None else getattr(row, what)
        return None if summary is None else summary.mean

    def ratio(what: str) -> float | None:
        one, other = mean(a, what), mean(b, what)
        return other / one if one and other is not None else None

    stages = mean(a, "stage"), mean(b, "stage")
    return PolicyComparison(name, *stages, *(ratio(what) for what in ("stage", "job", "coflow", "makespan")))
