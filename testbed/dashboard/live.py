"""A standing testbed as the page's records, once a second, for all who look at once."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agents.config import Config
from agents.control import CoordinatorClient
from testbed.api import Testbed
from testbed.dashboard import auxiliary
from testbed.dashboard.page import (
    RECORDS,
    SCHEMA,
    TESTBED_EVENTS,
    describe_network,
    event_text,
    plan_record,
)
from testbed.emulation.waiting import is_running
from testbed.status import JobStatus, Snapshot, StatusReader
from testbed.telemetry.query import PrometheusClient, PrometheusError, Series
from topologies.errors import StormbedError
from topologies.model import Topology

# What a page gets that is opened later: a quarter of an hour of each kind of record.
KEPT: Final = 900
TAIL_BYTES: Final = 200_000
_SUMS: Final = "stormbed_agent_synchronisation_seconds_sum"
_COUNTS: Final = "stormbed_agent_synchronisation_seconds_count"
_PLANNED: Final = "stormbed_coordinator_rate_bps"
# One that does not answer at once has ended, or its machine is busy: the page goes on without it, and asks again.
COORDINATOR_S: Final = 1.0
ASK_AGAIN_S: Final = 5.0

Rates = dict[tuple[str, str], float]
Update = dict[str, list[dict[str, Any]]]


class LiveSource:
    """Looks at a testbed again and again.

    Args:
        testbed: it stands.

    `read` blocks for as long as the supervisor takes to answer; one thread at a time may call it.
    """

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._reader = StatusReader(testbed)
        self._prometheus = PrometheusClient(testbed.info.prometheus_url, timeout=0.8)
        self._began_s = time.time()
        self._log = LogTail(testbed.run_dir / "events.jsonl")
        self._syncs = SyncMeter()
        self._versions: dict[str, int] = {}
        self._news: list[dict[str, Any]] = []
        self._planned: dict[str, tuple[str, str, int]] = {}
        self._ask_again_s: dict[str, float] = {}  # of jobs whose plan in use the coordinator has not told
        self._turns = Turns()
        self._routes = auxiliary.Routes(testbed.topology)
        self._round = False
        self._late = False
        self._history: dict[str, deque[dict[str, Any]]] = {kind: deque(maxlen=KEPT) for kind in RECORDS}

    def document(self) -> dict[str, Any]:
        """What a page that is opened now is told first."""
        info = self._testbed.info
        fidelity = info.fidelity or {"verdict": "unknown", "reasons": ["not calibrated"]}
        return {
            "schema": SCHEMA,
            "mode": "live",
            "title": info.name,
            "id": info.name,
            "world": "emulated",
            "started_s": self._began_s,
            "status": "up",
            "failure": None,
            "fidelity": {"verdict": fidelity["verdict"], "reasons": list(fidelity.get("reasons", ()))},
            "notes": [],
            "network": describe_network(self._testbed.topology),
            "phases": {},
            **{kind: list(records) for kind, records in self._history.items()},
            "segments": self._turns.all(),
        }

    def read(self) -> Update:
        """Look once; what is new since the last look.

        Raises:
            StormbedError: the testbed has gone.
        """
        update: Update = {kind: [] for kind in RECORDS}
        # Before the look: what is told has then happened to the links that are shown beside it.
        self._news += self._log.news()
        try:
            snapshot = self._reader.read()
        except StormbedError as error:
            info = self._testbed.info
            if not is_running(info.pid, info.started_ticks):
                raise
            self._answers_late(error, update)
            return update
        self._late = False
        t = time.time() - self._began_s
        frame = link_frame(t, snapshot)
        if frame is not None:
            update["frames"].append(frame)
        update["sites"].append({"t": t, "rows": site_rows(snapshot)})
        update["events"] += self._events()
        self._follow_jobs(snapshot, t, update)
        for kind, records in update.items():
            if kind != "segments":
                self._history[kind].extend(records)
        return update

    def _answers_late(self, error: StormbedError, update: Update) -> None:
        """A busy machine's testbed has not gone: that it does not answer is told once, and it is asked again."""
        if not self._late:
            t = time.time() - self._began_s
            text = f"the testbed answers late: {error.message}"
            update["events"].append({"t": t, "kind": "late", "level": "warning", "text": text})
            self._history["events"].extend(update["events"])
        self._late = True

    def close(self) -> None:
        self._reader.close()
        self._prometheus.close()

    def _events(self) -> list[dict[str, Any]]:
        news, self._news = self._news, []
        found = [
            {
                "t": float(event["t_s"]) - self._began_s,
                "kind": event["kind"],
                "level": TESTBED_EVENTS[event["kind"]],
                "text": event_text(event),
            }
            for event in news
            if event.get("kind") in TESTBED_EVENTS
        ]
        # Lines that were there before the page began are on its axis only if recent.
        return [event for event in found if event["t"] >= -60.0]

    def _follow_jobs(self, snapshot: Snapshot, t: float, update: Update) -> None:
        """Policies, plans and synchronisations, from what agents and coordinator export."""
        update["segments"] += self._turns.advance(t, snapshot.jobs)
        if not snapshot.jobs:
            if self._planned:
                self._planned.clear()
                self._ask_again_s.clear()
                update["plans"].append(plan_record(t, "", {"scheduler": ""}, ""))
            return
        for job in snapshot.jobs:
            if self._versions.get(job.job) != job.policy_version:
                self._versions[job.job] = job.policy_version
                update["policies"].append({"t": t, "version": job.policy_version, "job": job.job})
        try:
            queries = (_SUMS, _COUNTS, _PLANNED, auxiliary.QUERY)
            series = {query: self._prometheus.instant(query) for query in queries}
        except PrometheusError:
            return
        rates = auxiliary.of_series(series[auxiliary.QUERY])
        if rates or self._round:
            update["auxiliary"].append(self._routes.record(t, rates))
        self._round = bool(rates)
        update["syncs"] += self._syncs.advance(t, snapshot.jobs, series[_SUMS], series[_COUNTS])
        for job in snapshot.jobs:
            # Estimates change all the time; the plan does with the policy.
            key = (job.segment, job.scheduler, job.policy_version)
            known = self._planned.get(job.job) == key
            if not job.scheduler or (known and t < self._ask_again_s.get(job.job, math.inf)):
                continue
            self._planned[job.job] = key
            plan = self._issued_plan(job)
            if plan is not None:
                self._ask_again_s.pop(job.job, None)
                source = f"version {job.policy_version}, as the coordinator issued it"
            else:
                self._ask_again_s[job.job] = t + ASK_AGAIN_S
                if known:
                    continue
                plan = plan_again(self._testbed.topology, job.scheduler, planned_rates(series[_PLANNED], job.job))
                source = "planned again here, from the rates that the coordinator plans with"
            update["plans"].append(plan_record(t, job.segment or job.job, plan, source))

    def _issued_plan(self, job: JobStatus) -> dict[str, Any] | None:
        """The plan in use, from the coordinator; None while that does not answer."""
        try:
            address = Config.load(self._testbed.run_dir).addresses.coordinator
            with CoordinatorClient(*address, timeout=COORDINATOR_S) as coordinator:
                plan: dict[str, Any] | None = coordinator.plan(job.job)["plan"]
        except (StormbedError, OSError):
            return None
        return plan or {"scheduler": job.scheduler}


def link_frame(t: float, snapshot: Snapshot) -> dict[str, Any] | None:
    """One moment of all links; None before there are two looks to take a rate from. Pure."""
    links = snapshot.links
    if any(link.achieved_bps is None for link in links):
        return None
    return {
        "t": t,
        "achieved_bps": [round(link.achieved_bps or 0.0) for link in links],
        "configured_bps": [round(link.configured_bps) for link in links],
        "drops": [round(link.drops_per_s or 0.0) for link in links],
        "down": [place for place, link in enumerate(links) if link.state != "up"],
    }


def site_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """What is known of each site. Pure."""
    return [
        {
            "agent_up": site.agent_up,
            "workers": site.workers,
            "cpu_ratio": None if site.cpu_ratio is None else round(site.cpu_ratio, 3),
            "rss_bytes": site.rss_bytes,
        }
        for site in snapshot.sites
    ]


def planned_rates(series: Sequence[Series], job: str) -> Rates:
    """The bit/s that the coordinator plans a job with, by (from, to); empty: the declared ones. Pure."""
    return {(s.labels["src"], s.labels["dst"]): s.last for s in series if s.labels.get("run") == job}


def plan_again(topology: Topology, scheduler: str, rates: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """The plan of a scheduler of this name, in its document's form; without roots where it has none. Pure."""
    from agents.planning.base import NetworkView, Scheduler
    from agents.planning.registry import get_scheduler

    names = topology.site_names
    index = {name: k for k, name in enumerate(names)}
    measured = {(index[u], index[v]): bps for (u, v), bps in rates.items() if u in index and v in index}
    try:
        # A tensor experiment of several sizes shows them as `netstorm/2000000`.
        chosen = get_scheduler(scheduler.partition("/")[0], names)
        if not isinstance(chosen, Scheduler):
            return {"scheduler": scheduler}
        view = NetworkView.from_topology(topology, dict(topology.rates()) | measured)
        return chosen.plan(view).to_dict(names)
    except StormbedError:
        return {"scheduler": scheduler}


class Turns:
    """Which scheduler had its turn when, from what the agents say is going on."""

    def __init__(self) -> None:
        self._known: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def all(self) -> list[dict[str, Any]]:
        return [dict(turn) for turn in self._known]

    def advance(self, t: float, jobs: Sequence[JobStatus]) -> list[dict[str, Any]]:
        """The turns that began or ended since the last call."""
        now = {(job.job, job.segment or job.job): job.scheduler for job in jobs if job.scheduler}
        open_turns = {(turn["job"], turn["label"]): turn for turn in self._known if turn["t1"] is None}
        found = []
        for key, turn in open_turns.items():
            if key not in now:
                turn |= {"t1": t, "status": "completed"}
                found.append(dict(turn))
        for (job, label), scheduler in now.items():
            if (job, label) not in open_turns:
                turn = {"job": job, "label": label, "scheduler": scheduler, "t0": t, "t1": None}
                self._known.append(turn | {"iterations": None, "status": "running"})
                found.append(dict(self._known[-1]))
        return found


class SyncMeter:
    """From the agents' running sums to synchronisations as they finish.

    An agent exports the sum and the count of its synchronisation times. Of the site that took longest, the
    growth of both since the last look gives the mean of what finished in between.
    """

    def __init__(self) -> None:
        self._before: dict[str, dict[str, tuple[float, float]]] = {}
        self._finished: dict[str, int] = {}

    def advance(
        self, t: float, jobs: Sequence[JobStatus], sums: Sequence[Series], counts: Sequence[Series]
    ) -> list[dict[str, Any]]:
        """What finished since the last call, one record a job at most."""
        now: dict[str, dict[str, tuple[float, float]]] = {}
        of = {(s.labels["run"], s.labels["instance"]): s.last for s in counts}
        for series in sums:
            run, site = series.labels["run"], series.labels["instance"]
            now.setdefault(run, {})[site] = (series.last, of.get((run, site), 0.0))
        found = []
        for job in jobs:
            before = self._before.get(job.job, {})
            means, most = [], 0.0
            for site, (total, count) in now.get(job.job, {}).items():
                total_then, count_then = before.get(site, (total, count))
                if count > count_then:
                    means.append((total - total_then) / (count - count_then))
                    most = max(most, count - count_then)
            if means:
                self._finished[job.job] = self._finished.get(job.job, 0) + round(most)
                record = {"t": t, "scheduler": job.scheduler, "segment": job.segment, "seconds": max(means)}
                found.append(record | {"iteration": job.iteration, "finished": self._finished[job.job]})
        self._before = now
        return found


class LogTail:
    """The new lines of an event log, its last part first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None
        self._rest = b""

    def news(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                if self._offset is None:
                    self._offset = max(0, self._path.stat().st_size - TAIL_BYTES)
                file.seek(self._offset)
                fresh = file.read()
        except OSError:
            return []
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        found = []
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:  # cut at its beginning, where the last part began
                continue
            if isinstance(event, dict):
                found.append(event)
        return found
