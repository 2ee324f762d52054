"""A run directory as the page's records. Pure but for reading the files."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from testbed.dashboard import auxiliary
from testbed.dashboard.page import (
    RUN_EVENTS,
    SCHEMA,
    TESTBED_EVENTS,
    changes_text,
    describe_network,
    event_text,
    plan_record,
)
from testbed.events import read_events
from testbed.experiments.manifest import EVENTS, LOGS, TOPOLOGY, TRACE, Manifest
from testbed.report.measurements import LinkSample, Measurements, beginning, read_run
from testbed.telemetry.export import JSON_FILE, open_packed
from topologies.errors import InvalidFileError
from topologies.load import topology_from_dict
from topologies.model import Topology

PLANNED: Final = "as the scheduler planned them"
_NS = 1e-9


def read_replay(directory: Path) -> dict[str, Any]:
    """Everything that the page shows of a run.

    Raises:
        InvalidFileError: the manifest or the topology is missing or damaged.
    """
    run = read_run(directory)
    manifest = run.manifest
    topology = _topology(directory)
    began_ns = beginning(manifest, run.links)
    changes = run.changes
    # The manifest has the order of the file, which need not be that of time.
    begun = [(segment.started_ns, segment) for segment in manifest.segments if segment.started_ns is not None]
    begun.sort(key=lambda turn: turn[0])
    segments = [
        {
            "label": segment.label,
            "scheduler": segment.scheduler,
            "t0": (started_ns - began_ns) * _NS,
            "t1": None if segment.finished_ns is None else (segment.finished_ns - began_ns) * _NS,
            "iterations": segment.iterations,
            "status": segment.status,
        }
        for started_ns, segment in begun
    ]
    fidelity = manifest.fidelity
    policies = _policies(directory, began_ns)
    return {
        "schema": SCHEMA,
        "mode": "replay",
        "title": manifest.name,
        "id": manifest.id,
        "world": manifest.world,
        "started_s": manifest.started_s,
        "status": manifest.status,
        "failure": None if manifest.failure is None else manifest.failure.message,
        "fidelity": {"verdict": fidelity.verdict, "reasons": list(fidelity.reasons)},
        "notes": [*manifest.notes, *run.problems],
        "network": describe_network(topology),
        "frames": frames(topology, run.links, changes),
        "segments": segments,
        "plans": [
            plan_record(
                (started_ns - began_ns) * _NS,
                segment.label,
                segment.plan,
                PLANNED,
            )
            for started_ns, segment in begun
            if segment.plan is not None
        ],
        "policies": policies,
        "syncs": _syncs(run, began_ns),
        "events": sorted(
            [
                *_segment_events(segments),
                *_changes(changes),
                *_policy_events(policies),
                *_log_events(directory, manifest, began_ns),
            ],
            key=lambda event: float(event["t"]),
        ),
        "sites": [],
        "auxiliary": _auxiliary(directory, topology, began_ns),
        "phases": _phases(directory, manifest, began_ns),
    }


def frames(
    topology: Topology, samples: Iterable[LinkSample], changes: Sequence[Mapping[str, str]] = ()
) -> list[dict[str, Any]]:
    """Samples by moment, one entry a directed link; a link that has no sample then keeps its declared rate.
    `down` has the links that carry nothing at all, as `changes` tell.
    """
    names = topology.site_names
    places = {(names[link.src], names[link.dst]): link.index for link in topology.directed}
    declared = [link.rate.bps for link in topology.directed]
    coming, down = deque(changes), set[int]()
    result = []
    for t, group in groupby(samples, key=lambda sample: sample.t_s):
        while coming and float(coming[0]["t_s"]) <= t:
            change = coming.popleft()
            place = places.get((change["src"], change["dst"]))
            if place is not None:
                (down.discard if change.get("state") in (None, "up") else down.add)(place)
        achieved, configured = [0] * len(declared), list(declared)
        drops, interval = [0] * len(declared), 0.0
        for sample in group:
            place = places.get((sample.src, sample.dst))
            if place is None:
                continue
            achieved[place], configured[place] = round(sample.achieved_bps), sample.configured_bps
            drops[place], interval = sample.dropped_packets, sample.interval_s
        frame: dict[str, Any] = {"t": t, "interval_s": interval, "down": sorted(down)}
        result.append(frame | {"achieved_bps": achieved, "configured_bps": configured, "drops": drops})
    return result


def _topology(directory: Path) -> Topology:
    path = directory / TOPOLOGY
    try:
        return topology_from_dict(json.loads(path.read_text(encoding="utf-8")), source=str(path))
    except (OSError, ValueError) as error:
        raise InvalidFileError(f"{path}: cannot be read: {error}") from error


def _syncs(run: Measurements, began_ns: int) -> list[dict[str, Any]]:
    shown = {segment.label: segment.scheduler for segment in run.manifest.segments}
    found = [
        {
            "t": (iteration.done_ns - began_ns) * _NS,
            "scheduler": shown[label],
            "segment": label,
            "iteration": iteration.iteration,
            "seconds": iteration.synchronisation_s,
            "loss": iteration.loss,
            "accuracy": iteration.accuracy,
        }
        for label, iterations in run.iterations.items()
        for iteration in iterations
        if iteration.synchronisation_s is not None
    ]
    return sorted(found, key=lambda sync: float(sync["t"] or 0.0))


def _segment_events(segments: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    result = []
    for segment in segments:
        text = f"{segment['label']} begins"
        result.append({"t": segment["t0"], "kind": "segment-start", "level": "info", "text": text})
        if segment["status"] == "failed" and segment["t1"] is not None:
            text = f"{segment['label']} failed"
            result.append({"t": segment["t1"], "kind": "segment-end", "level": "failure", "text": text})
    return result


def _policy_events(policies: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """New plans in the middle of a turn; those that come in turn (`every`) are too many to tell one by one."""
    words = {"rates": "measured rates", "links": "links that failed or returned"}
    return [
        {
            "t": policy["t"],
            "kind": "policy",
            "level": "info",
            "text": f"policy {policy['version']} of {policy['job']} in force from collective {policy['from_seq']}, "
            f"planned anew for {words[policy['reason']]}"
            + ("" if policy["gain_ratio"] is None else f"; {policy['gain_ratio']:+.0%} of the rate predicted"),
        }
        for policy in policies
        if policy["reason"] in words
    ]


def _changes(rows: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Link changes by moment."""
    result = []
    for t, group in groupby(rows, key=lambda row: row["t_s"]):
        links = list(group)
        bad = any(row.get("state") not in (None, "up") for row in links)
        result.append(
            {
                "t": float(t),
                "kind": "link_changes",
                "level": "failure" if bad else "change",
                "text": changes_text(links),
            }
        )
    return result


def _log_events(directory: Path, manifest: Manifest, began_ns: int) -> list[dict[str, Any]]:
    """The runner's and the testbed's own events; those of a simulated run are on another clock."""
    if manifest.world == "simulated":
        return []
    # `link_changes` are in changes.csv already.
    ours = {kind: level for kind, level in TESTBED_EVENTS.items() if kind != "link_changes"}
    logs = ((directory / EVENTS, RUN_EVENTS), (directory / LOGS / EVENTS, ours))
    end_s = manifest.finished_s
    return [
        {
            "t": (int(event["monotonic_ns"]) - began_ns) * _NS,
            "kind": event["kind"],
            "level": levels[event["kind"]],
            "text": event_text(event),
        }
        for path, levels in logs
        for event in read_events(path)
        if event.get("kind") in levels
        and manifest.started_s <= float(event["t_s"]) <= (float("inf") if end_s is None else end_s)
    ]


def _policies(directory: Path, began_ns: int) -> list[dict[str, Any]]:
    """The policies that came into force, and why."""
    return [
        {
            "t": (int(policy["monotonic_ns"]) - began_ns) * _NS,
            "version": policy["version"],
            "job": event.get("segment", ""),
            "from_seq": policy.get("from_seq"),
            "reason": policy.get("reason", "start"),
            "gain_ratio": policy.get("gain_ratio"),
        }
        for event in read_events(directory / EVENTS, "network-followed")
        for policy in event.get("policies", ())
        if "monotonic_ns" in policy
    ]


def _auxiliary(directory: Path, topology: Topology, began_ns: int) -> list[dict[str, Any]]:
    """What went round, from the metrics that the run kept; nothing where it kept none, as in the simulated world."""
    try:
        with open_packed(directory / JSON_FILE, "rt") as file:
            text = file.read()
        # Most runs have none, and many megabytes of metrics.
        if '"auxiliary": "1"' not in text:
            return []
        metrics = json.loads(text)
    except (OSError, EOFError, ValueError):  # none, or half of one
        return []
    event = next(iter(read_events(directory / EVENTS)), None)
    if event is None:
        return []
    offset_s = (int(event["monotonic_ns"]) - began_ns) * _NS - float(event["t_s"])
    return auxiliary.of_run(metrics, offset_s, auxiliary.Routes(topology))


def _phases(directory: Path, manifest: Manifest, began_ns: int) -> dict[str, list[list[float]]]:
    """When each site's first worker computed and waited for the network, iteration by iteration."""
    result: dict[str, list[list[float]]] = {}
    for worker in manifest.workers:
        if worker.worker != 0:
            continue
        rows = result.setdefault(worker.site, [])
        for record in read_events(directory / worker.directory / TRACE):
            if "done_ns" in record and "start_ns" in record:
                keys = ("start_ns", "ready_ns", "done_ns", "end_ns")
                rows.append([round((int(record[key]) - began_ns) * _NS, 4) for key in keys])
    return result
