"""A standing testbed at a glance: links, sites, and the run that is going on.

Rates are differences of the supervisor's own counters, so they are exact and need nobody else. What only the
agents know comes from Prometheus; while that does not answer, those fields are None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from testbed.api import Testbed
from testbed.emulation.page import page_url
from testbed.parts import ended_parts
from testbed.telemetry.query import PrometheusClient, PrometheusError, Series

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
RECENT = "30s"


@dataclass(frozen=True)
class LinkStatus:
    """One direction. `achieved_bps`, `utilisation_ratio` and `drops_per_s` are of the time since the last
    look.
    """

    src: str
    dst: str
    state: str
    configured_bps: float
    delay_s: float
    achieved_bps: float | None
    utilisation_ratio: float | None
    backlog_bytes: int
    drops: int
    drops_per_s: float | None
    jitter_s: float = 0.0
    loss_ratio: float = 0.0
    loss_burst: float | None = None


@dataclass(frozen=True)
class SiteStatus:
    """One site. `cpu_ratio` is in cores; workers are processes of runs."""

    site: str
    wan_ip: str
    mgmt_ip: str
    agent_up: bool | None
    workers: int
    processes: int
    cpu_ratio: float | None
    rss_bytes: int


@dataclass(frozen=True)
class JobStatus:
    """A job on the agents. `iteration` is that of the site that is furthest behind; `synchronisation_s` the
    mean
    of the last seconds, over all sites."""

    job: str
    segment: str
    scheduler: str
    iteration: int
    policy_version: int
    synchronisation_s: float | None


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment."""

    name: str
    topology: str
    up_s: float
    healthy: bool
    ended_processes: tuple[str, ...]
    fidelity: Mapping[str, Any] | None
    prometheus_url: str
    page_url: str | None
    ssh_config: str
    prometheus_up: bool
    dynamics: Mapping[str, Any] | None
    links: tuple[LinkStatus, ...]
    sites: tuple[SiteStatus, ...]
    jobs: tuple[JobStatus, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SiteUse:
    """What the processes of one site have used, from /proc."""

    processes: int = 0
    workers: frozenset[str] = frozenset()
    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(frozen=True)
class _Look:
    """The cumulative numbers of one look."""

    monotonic_ns: int
    links: Mapping[tuple[str, str], tuple[int, int]]  # bytes, drops
    cpu_s: Mapping[str, float] = field(default_factory=dict)


class StatusReader:
    """Reads a testbed again and again; each snapshot's rates are since the one before.

    Args:
        testbed: a testbed that stands.
    """

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._namespaces = {
            inode: name
            for name, site in testbed.info.sites.items()
            if site.pid is not None and (inode := _network_of(site.pid)) is not None
        }
        self._prometheus = PrometheusClient(testbed.info.prometheus_url, timeout=0.8)
        self._last: _Look | None = None

    @property
    def name(self) -> str:
        return self._testbed.name

    def read(self) -> Snapshot:
        """Look once.

        Raises:
            StormbedError: the testbed has gone.
        """
        testbed = self._testbed
        state = testbed.call("status", timeout=10.0)
        sample = testbed.call("sample", timeout=10.0)
        configured = testbed.links()
        uses = site_uses(self._namespaces)
        now = _Look(
            sample["monotonic_ns"],
            {(row["src"], row["dst"]): (row["bytes"], _drops(row)) for row in sample["links"]},
            {name: use.cpu_s for name, use in uses.items()},
        )
        ended = ended_parts(state["processes"])
        before = self._last.links if self._last is not None else None
        agents_up, jobs = self._ask_prometheus()
        snapshot = Snapshot(
            name=testbed.name,
            topology=testbed.topology.name,
            up_s=time.time() - testbed.info.created_s,
            healthy=state["phase"] == "up" and not ended,
            ended_processes=ended,
            fidelity=testbed.info.fidelity,
            prometheus_url=testbed.info.prometheus_url,
            page_url=page_url(testbed.run_dir),
            ssh_config=str(testbed.ssh_config),
            prometheus_up=agents_up is not None,
            dynamics=state["dynamics"],
            links=link_statuses(configured, before, now.links, self._seconds(now)),
            sites=tuple(
                self._site(name, uses.get(name, SiteUse()), agents_up, now) for name in testbed.sites
            ),
            jobs=jobs,
        )
        self._last = now
        return snapshot

    def close(self) -> None:
        self._prometheus.close()

    def _seconds(self, now: _Look) -> float:
        return (now.monotonic_ns - self._last.monotonic_ns) / 1e9 if self._last is not None else 0.0

    def _site(self, name: str, use: SiteUse, agents_up: Mapping[str, bool] | None, now: _Look) -> SiteStatus:
        site = self._testbed.sites[name]
        seconds = self._seconds(now)
        before = self._last.cpu_s.get(name) if self._last is not None else None
        # A process that ended takes its CPU time out of the sum; then there is no rate for this once.
        known = before is not None and seconds > 0 and use.cpu_s >= before
        return SiteStatus(
            site=name,
            wan_ip=site.wan_ip,
            mgmt_ip=site.mgmt_ip,
            agent_up=agents_up.get(name, False) if agents_up is not None else None,
            workers=len(use.workers),
            processes=use.processes,
            cpu_ratio=(use.cpu_s - before) / seconds if known and before is not None else None,
            rss_bytes=use.rss_bytes,
        )

    def _ask_prometheus(self) -> tuple[dict[str, bool] | None, tuple[JobStatus, ...]]:
        """Which agents are up, by site (None when Prometheus does not answer), and the jobs."""
        try:
            up = {
                series.labels["instance"]: series.last == 1
                for series in self._prometheus.instant('up{job="agent"}')
            }
            metrics = {query: self._prometheus.instant(query) for query in JOB_QUERIES}
        except PrometheusError:
            return None, ()
        return up, job_statuses(metrics)


# The agents name a job `run`, because Prometheus' own `job` names the kind of target.
_JOB = "run"
_SEGMENTS = "stormbed_agent_segment_info"
_ITERATIONS = f"min by ({_JOB}) (stormbed_agent_iteration)"
_VERSIONS = f"max by ({_JOB}) (stormbed_agent_policy_version)"
_SYNCHRONISATION = (
    f"sum by ({_JOB}) (rate(stormbed_agent_synchronisation_seconds_sum[{RECENT}]))"
    f" / sum by ({_JOB}) (rate(stormbed_agent_synchronisation_seconds_count[{RECENT}]))"
)
JOB_QUERIES = (_SEGMENTS, _ITERATIONS, _VERSIONS, _SYNCHRONISATION)


def job_statuses(metrics: Mapping[str, Sequence[Series]]) -> tuple[JobStatus, ...]:
    """The jobs from the answers to `JOB_QUERIES`. Pure."""

    def by_job(query: str) -> dict[str, float]:
        return {series.labels[_JOB]: series.last for series in metrics[query]}

    iterations, versions, seconds = by_job(_ITERATIONS), by_job(_VERSIONS), by_job(_SYNCHRONISATION)
    segments = {series.labels[_JOB]: series.labels for series in metrics[_SEGMENTS]}
    return tuple(
        JobStatus(
            job=job,
            segment=labels.get("segment", ""),
            scheduler=labels.get("scheduler", ""),
            iteration=int(iterations.get(job, 0)),
            policy_version=int(versions.get(job, 0)),
            # NaN: nothing was synchronised lately
            synchronisation_s=value if (value := seconds.get(job)) is not None and value == value else None,
        )
        for job, labels in sorted(segments.items())
    )


def link_statuses(
    configured: Sequence[Mapping[str, Any]],
    before: Mapping[tuple[str, str], tuple[int, int]] | None,
    now: Mapping[tuple[str, str], tuple[int, int]],
    seconds: float,
) -> tuple[LinkStatus, ...]:
    """Configured against achieved, from two looks at the counters `seconds` apart. Pure.

    Args:
        configured: rows of the supervisor's `links`.
        before, now: (src, dst) to bytes and drops.
    """
    result = []
    for row in configured:
        ends = (row["src"], row["dst"])
        achieved = drops_per_s = None
        sent, drops = now[ends]
        if before is not None and ends in before and seconds > 0:
            achieved = max(0, sent - before[ends][0]) * 8 / seconds
            drops_per_s = max(0, drops - before[ends][1]) / seconds
        result.append(
            LinkStatus(
                src=row["src"],
                dst=row["dst"],
                state=row["state"],
                configured_bps=row["rate_bps"],
                delay_s=row["delay_s"],
                achieved_bps=achieved,
                utilisation_ratio=achieved / row["rate_bps"] if achieved is not None else None,
                backlog_bytes=row["counters"]["backlog_bytes"],
                drops=drops,
                drops_per_s=drops_per_s,
                jitter_s=row["jitter_s"],
                loss_ratio=row["loss_ratio"],
                loss_burst=row["loss_burst"],
            )
        )
    return tuple(result)


def _drops(row: Mapping[str, Any]) -> int:
    line = row["delay_line"]
    return int(row["drops"]) + (sum(line["drops"].values()) if line else 0)


def site_uses(namespaces: Mapping[int, str], proc: Path = Path("/proc")) -> dict[str, SiteUse]:
    """What every site's processes use, in one pass over /proc.

    Args:
        namespaces: number of a site's network namespace to the site's name.
    """
    found: dict[str, list[SiteUse]] = {name: [] for name in namespaces.values()}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        site = namespaces.get(_network_of(int(entry.name), proc) or 0)
        if site is None:
            continue
        try:
            fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            pages = int((entry / "statm").read_text(encoding="utf-8").split()[1])
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile
        workers = {
            word.removeprefix(b"STORMBED_WORKER=").decode(errors="replace")
            for word in environment
            if word.startswith(b"STORMBED_WORKER=")
        }
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        found[site].append(SiteUse(1, frozenset(workers), cpu_s, pages * _PAGE))
    return {
        name: SiteUse(
            len(uses),
            frozenset().union(*(use.workers for use in uses)),
            sum(use.cpu_s for use in uses),
            sum(use.rss_bytes for use in uses),
        )
        for name, uses in found.items()
    }


def _network_of(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The number of a process's network namespace; None when it is gone."""
    try:
        return int(str((proc / str(pid) / "ns" / "net").readlink()).partition("[")[2].rstrip("]"))
    except (OSError, ValueError):
        return None
