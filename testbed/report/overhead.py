"""What following the network and changing policies took, beside the traffic that it was for. From a run's files.

Control messages cross the WAN only where the coordinator is at a site; their share is given of what all links
carried either way, so that runs can be compared. Probes always cross it, and are part of what was carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from testbed.events import read_events
from testbed.experiments.manifest import EVENTS, Manifest
from testbed.report.measurements import Measurements

FOLLOWED = "network-followed"
COST = "segment-cost"


@dataclass(frozen=True)
class Overhead:
    """One scheduler over all its segments.

    policies      that came into force, by the reason for them (start, rates, every, links)
    gains         relative gains that the re-plans promised
    control       bytes of control messages by class, both directions
    probe_bytes   sent to measure idle links, as far as reported
    report_count  reports of estimates
    carried       bytes on all links while its segments ran
    cpu_s         seconds of CPU by part of the testbed (agent, coordinator, controller, ...); empty where unknown
    wall_s        how long its segments ran
    """

    scheduler: str
    policies: Counter[str] = field(default_factory=Counter)
    gains: tuple[float, ...] = ()
    control: Counter[str] = field(default_factory=Counter)
    probe_bytes: int = 0
    report_count: int = 0
    carried: int = 0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def replans(self) -> int:
        """Policies that came into force in the middle of a segment."""
        return sum(count for reason, count in self.policies.items() if reason != "start")

    def share(self, count: float) -> float | None:
        """So many bytes as a part of what was carried."""
        return count / self.carried if self.carried else None

    def to_json(self) -> dict[str, Any]:
        """Plain values with units in their names."""
        control = sum(self.control.values())
        return {
            "scheduler": self.scheduler,
            "policies": dict(self.policies),
            "replans": self.replans,
            "predicted_gain_ratios": list(self.gains),
            "control_bytes": dict(self.control),
            "control_ratio": self.share(control),
            "probe_bytes": self.probe_bytes,
            "probe_ratio": self.share(self.probe_bytes),
            "reports": self.report_count,
            "carried_bytes": self.carried,
            "cpu_s": dict(self.cpu_s),
            "wall_s": self.wall_s,
        }


def read_overhead(run: Measurements) -> tuple[Overhead, ...]:
    """One entry a scheduler, in the order of the run; none for a run that kept nothing of it."""
    shown = {segment.label: segment.scheduler for segment in run.manifest.segments}
    followed = list(read_events(run.directory / EVENTS, FOLLOWED))
    if not followed:
        return ()
    costs = list(read_events(run.directory / EVENTS, COST))
    return tuple(
        _of(name, run, _chosen(followed, shown, name), _chosen(costs, shown, name))
        for name in dict.fromkeys(shown.values())
    )


def _chosen(events: Iterable[Mapping[str, Any]], shown: Mapping[str, str], name: str) -> list[Mapping[str, Any]]:
    return [event for event in events if shown.get(str(event.get("segment"))) == name]


def _of(
    name: str, run: Measurements, followed: list[Mapping[str, Any]], costs: list[Mapping[str, Any]]
) -> Overhead:
    policies: Counter[str] = Counter()
    control: Counter[str] = Counter()
    cpu: dict[str, float] = {}
    gains: list[float] = []
    probes = reports = 0
    for event in followed:
        for policy in event.get("policies") or ():
            policies[str(policy.get("reason", "start"))] += 1
            if policy.get("gain_ratio") is not None:
                gains.append(float(policy["gain_ratio"]))
        for counts in (event.get("control") or {}).values():
            control.update({str(kind): int(count) for kind, count in counts.items()})
        network = event.get("network") or {}
        probes += int(network.get("probe_bytes", 0))
        reports += int(network.get("reports", 0))
    for event in costs:
        for part, seconds in (event.get("cpu_s") or {}).items():
            cpu[str(part)] = cpu.get(str(part), 0.0) + float(seconds)
    segments = {segment.label for segment in run.manifest.segments if segment.scheduler == name}
    return Overhead(
        scheduler=name,
        policies=policies,
        gains=tuple(gains),
        control=control,
        probe_bytes=probes,
        report_count=reports,
        carried=sum(sample.carried_bytes for sample in run.links if sample.segment in segments),
        cpu_s={part: round(seconds, 3) for part, seconds in sorted(cpu.items())},
        wall_s=_wall(run.manifest, segments),
    )


def _wall(manifest: Manifest, labels: set[str]) -> float:
    return sum(
        (segment.finished_ns - segment.started_ns) / 1e9
        for segment in manifest.segments
        if segment.label in labels and segment.started_ns is not None and segment.finished_ns is not None
    )
