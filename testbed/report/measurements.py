"""From a run directory's files to its measurements. Pure but for reading the files.

Definitions, all on the run's one monotonic clock:

- synchronisation time of an iteration = last result at any worker - last gradient ready at any worker;
- iteration time = last worker's end of the iteration - last worker's end of the one before it
  (of a segment's first iteration: since the first worker began it), so the times of a segment's
  iterations sum to the time it took;
- carried bytes: every byte on every directed link counts, so a byte relayed over two links counts twice.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.experiments.manifest import LINKS, TRACE, Manifest, read_manifest
from testbed.report.links_over_time import read_changes

_NS = 1e-9


@dataclass(frozen=True)
class Iteration:
    """One iteration over all workers; times in seconds.

    `complete` says that every worker of the run reported it; times of an incomplete one are None. `ready_ns`
    and `done_ns` are the last gradient and the last result on the run's clock. `idle_s` is by rank how long a
    worker's gradients waited for those of the last one.
    """

    segment: str
    iteration: int
    warmup: bool
    complete: bool
    ready_ns: int
    done_ns: int
    synchronisation_s: float | None
    iteration_s: float | None
    loss: float | None
    accuracy: float | None
    idle_s: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LinkSample:
    """One directed link over one sampling interval that ended at `t_s` (seconds since the run began)."""

    t_s: float
    interval_s: float
    segment: str
    src: str
    dst: str
    configured_bps: int
    achieved_bps: float
    carried_bytes: int
    dropped_packets: int


@dataclass(frozen=True)
class Measurements:
    """All that a run directory says: the manifest, iterations by segment, link samples, parameter digests, and the
    rows of `changes.csv`."""

    directory: Path
    manifest: Manifest
    iterations: Mapping[str, tuple[Iteration, ...]]
    links: tuple[LinkSample, ...] = ()
    parameters: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    changes: tuple[Mapping[str, str], ...] = ()
    problems: tuple[str, ...] = ()


def read_run(directory: Path) -> Measurements:
    """Read a run directory.

    Raises:
        InvalidFileError: the manifest is missing or damaged. Damage in a trace is a problem of the result,
            not an error: what can be read is reported.
    """
    manifest = read_manifest(directory)
    problems: list[str] = []
    records: dict[int, list[dict[str, Any]]] = {}
    # Of searches every trial has traces of its own, and `testbed.report.searches` reads what they came to.
    for worker in () if manifest.experiment.get("tuners") else manifest.workers:
        trace = directory / worker.directory / TRACE
        records[worker.rank] = _read_trace(trace, f"{worker.directory}/{TRACE}", problems)
    iterations = {
        segment.label: fold_iterations(segment.label, segment.warmup, records)
        for segment in manifest.segments
    }
    for segment in manifest.segments:
        incomplete = sum(not iteration.complete for iteration in iterations[segment.label])
        if incomplete and segment.status == "completed":
            problems.append(f"{segment.label}: {incomplete} iterations lack a worker's record")
    return Measurements(
        directory=directory,
        manifest=manifest,
        iterations=iterations,
        links=read_links(directory / LINKS, problems),
        parameters=_parameter_digests(records),
        changes=tuple(read_changes(directory, manifest, problems)),
        problems=tuple(problems),
    )


def fold_iterations(
    segment: str, warmup: int, records: Mapping[int, Iterable[Mapping[str, Any]]]
) -> tuple[Iteration, ...]:
    """Join the workers' records of one segment, iteration by iteration.

    Args:
        segment: the segment's label.
        warmup: how many of its first iterations are marked as warm-up.
        records: each rank's trace records, of any segment, in any order.
    """
    rows: dict[int, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for rank, trace in records.items():
        for record in trace:
            if record.get("segment") == segment and _is_iteration(record):
                rows[int(record["iteration"])][rank] = record
    result: list[Iteration] = []
    previous_end: int | None = None
    for position, number in enumerate(sorted(rows)):
        found = list(rows[number].values())
        complete = len(found) == len(records)
        end = max(int(record["end_ns"]) for record in found)
        began = min(int(record["start_ns"]) for record in found) if previous_end is None else previous_end
        ready, done = (max(int(record[key]) for record in found) for key in ("ready_ns", "done_ns"))
        result.append(
            Iteration(
                segment=segment,
                iteration=number,
                warmup=position < warmup,
                complete=complete,
                ready_ns=ready,
                done_ns=done,
                synchronisation_s=(done - ready) * _NS if complete else None,
                iteration_s=(end - began) * _NS if complete else None,
                loss=_mean_of(found, "loss"),
                accuracy=_mean_of(found, "accuracy"),
                idle_s={
                    rank: (ready - int(record["ready_ns"])) * _NS
                    for rank, record in sorted(rows[number].items())
                    if complete
                },
            )
        )
        previous_end = end
    return tuple(result)


def read_links(path: Path, problems: list[str]) -> tuple[LinkSample, ...]:
    """Read `links.csv`; a missing file is no sample, a damaged row a named problem."""
    if not path.exists():
        return ()
    samples: list[LinkSample] = []
    with path.open(newline="", encoding="utf-8") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            try:
                samples.append(
                    LinkSample(
                        t_s=float(row["t_s"]),
                        interval_s=float(row["interval_s"]),
                        segment=row["segment"],
                        src=row["src"],
                        dst=row["dst"],
                        configured_bps=int(row["configured_bps"]),
                        achieved_bps=float(row["achieved_bps"]),
                        carried_bytes=int(row["carried_bytes"]),
                        dropped_packets=int(row["dropped_packets"]),
                    )
                )
            except (KeyError, TypeError, ValueError):
                problems.append(f"{path.name}: line {number} cannot be read")
    return tuple(samples)


def beginning(manifest: Manifest, links: Sequence[LinkSample]) -> int:
    """The moment of the run's clock, in ns, from which the times of `links.csv` and `changes.csv` count.

    Where a segment begins, a sample ends: so the first sample of a segment says when that was on both
    clocks.
    """
    first: dict[str, float] = {}
    for sample in links:
        first.setdefault(sample.segment, sample.t_s - sample.interval_s)
    for segment in manifest.segments:
        if segment.started_ns is not None and segment.label in first:
            return round(segment.started_ns - first[segment.label] * 1e9)
    started = [segment.started_ns for segment in manifest.segments if segment.started_ns is not None]
    return min(started, default=0)


def _read_trace(path: Path, name: str, problems: list[str]) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        problems.append(f"{name}: {error.strerror}")
        return []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            # A worker that is killed may leave half a line.
            problems.append(f"{name}: line {number} is not JSON")
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _is_iteration(record: Mapping[str, Any]) -> bool:
    return all(
        isinstance(record.get(key), int) for key in ("iteration", "start_ns", "ready_ns", "done_ns", "end_ns")
    )


def _mean_of(records: Iterable[Mapping[str, Any]], key: str) -> float | None:
    values = [float(record[key]) for record in records if isinstance(record.get(key), int | float)]
    return sum(values) / len(values) if values else None


def _parameter_digests(records: Mapping[int, Iterable[Mapping[str, Any]]]) -> dict[str, dict[int, str]]:
    """By segment label and rank: the digest of the parameters that the worker ended the segment with."""
    digests: dict[str, dict[int, str]] = defaultdict(dict)
    for rank, trace in records.items():
        for record in trace:
            digest = record.get("parameters_sha256")
            if isinstance(digest, str) and isinstance(record.get("segment"), str):
                digests[record["segment"]][rank] = digest
    return dict(digests)
