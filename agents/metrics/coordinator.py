"""What the coordinator shows: who is connected, the jobs, the rates they are planned with, its own traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agents.config import Config
from agents.control_classes import CLASSES
from agents.coordinator_job import CoordinatedJob
from agents.streams import FrameStream


class ObservedCoordinator(Protocol):
    """What of a coordinator is shown: `agents.coordinator.Coordinator` has it."""

    config: Config
    aborted_jobs: int

    @property
    def agents(self) -> Mapping[int, FrameStream]: ...

    @property
    def jobs(self) -> Mapping[str, CoordinatedJob]: ...


class CoordinatorCollector(Collector):
    """Metrics of the coordinator."""

    def __init__(self, coordinator: ObservedCoordinator) -> None:
        self._coordinator = coordinator

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        coordinator = self._coordinator
        names = coordinator.config.topology.site_names
        agents = GaugeMetricFamily(
            "stormbed_coordinator_agent_connected", "1 while the site's agent is connected", labels=["site"]
        )
        for site, name in enumerate(names):
            agents.add_metric([name], site in coordinator.agents)
        yield agents
        yield GaugeMetricFamily("stormbed_coordinator_jobs", "Open jobs", len(coordinator.jobs))
        yield CounterMetricFamily(
            "stormbed_coordinator_aborted_jobs", "Jobs stopped for a cause", coordinator.aborted_jobs
        )
        version = GaugeMetricFamily(
            "stormbed_coordinator_policy_version", "Policy of the latest release", labels=["run"]
        )
        released = CounterMetricFamily(
            "stormbed_coordinator_released_collectives", "Collectives released", labels=["run"]
        )
        for job in coordinator.jobs.values():
            version.add_metric([job.name], job.machine.version)
            released.add_metric([job.name], job.machine.next_seq)
        yield version
        yield released
        yield from self._network()

    def _network(self) -> Iterator[Metric]:
        coordinator = self._coordinator
        names = coordinator.config.topology.site_names
        rates = GaugeMetricFamily(
            "stormbed_coordinator_rate_bps",
            "What the job is planned with now, measured or not",
            labels=["run", "src", "dst"],
        )
        reports = CounterMetricFamily(
            "stormbed_coordinator_estimate_reports", "Reports of estimates, this segment", labels=["run"]
        )
        replans = CounterMetricFamily(
            "stormbed_coordinator_replans", "New plans for measured rates, this segment", labels=["run"]
        )
        sent = CounterMetricFamily(
            "stormbed_coordinator_sent_bytes",
            "Bytes to the site's agent, by what they are for",
            labels=["site", "class"],
        )
        for job in coordinator.jobs.values():
            if job.watch is not None:
                for (u, v), rate in job.watch.rates().items():
                    rates.add_metric([job.name, names[u], names[v]], rate)
                reports.add_metric([job.name], job.watch.reports)
                replans.add_metric([job.name], job.watch.replans)
        for site, stream in coordinator.agents.items():
            for purpose in CLASSES:
                sent.add_metric([names[site], purpose], stream.sent[purpose])
        yield from (rates, reports, replans, sent)
