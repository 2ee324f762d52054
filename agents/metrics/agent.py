"""What an agent shows: its traffic, its jobs, what they know of the network, and an order of coflows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from agents.coflow_site import CoflowSite
from agents.config import Config
from agents.control_classes import CLASSES
from agents.coordinator_link import CoordinatorLink
from agents.link_state import NetworkNow
from agents.site_job import SiteJob
from agents.transport import Transport


class ObservedAgent(Protocol):
    """What of an agent is shown: `agents.agent.Agent` has it."""

    config: Config
    transport: Transport
    coordinator: CoordinatorLink
    coflows: CoflowSite
    now: NetworkNow
    late_frames: int
    failed_jobs: int

    @property
    def jobs(self) -> Mapping[str, SiteJob]: ...

    @property
    def held_bytes(self) -> int: ...


class AgentCollector(Collector):
    """Metrics of one agent, labelled with site names; `run` names a job, as `job` is Prometheus' own."""

    def __init__(self, agent: ObservedAgent) -> None:
        self._agent = agent

    def describe(self) -> list[Metric]:
        return []  # so that registering collects nothing

    def collect(self) -> Iterator[Metric]:
        agent, names = self._agent, self._agent.config.topology.site_names
        sent = CounterMetricFamily(
            "stormbed_agent_sent_bytes", "Bytes handed to the kernel", labels=["peer", "path", "class"]
        )
        frames = CounterMetricFamily(
            "stormbed_agent_sent_frames", "Frames begun", labels=["peer", "path", "class"]
        )
        lost = CounterMetricFamily(
            "stormbed_agent_lost_connections",
            "Connections that ended by themselves",
            labels=["peer", "path", "class"],
        )
        for lane in agent.transport.lanes():
            labels = [names[lane.id.peer], str(lane.id.path), str(lane.id.cls)]
            sent.add_metric(labels, lane.counters.bytes)
            frames.add_metric(labels, lane.counters.frames)
            lost.add_metric(labels, lane.counters.losses)
        yield sent
        yield frames
        yield lost

        received = CounterMetricFamily(
            "stormbed_agent_received_bytes", "Bytes read from peers", labels=["peer", "path"]
        )
        for (peer, path), counters in agent.transport.received.items():
            received.add_metric([names[peer], str(path)], counters.bytes)
        yield received

        queue = GaugeMetricFamily(
            "stormbed_agent_queue_chunks",
            "Chunks that wait, by the neighbour where their path begins",
            labels=["first_hop"],
        )
        for hop, length in agent.transport.queue_lengths().items():
            queue.add_metric([names[hop]], length)
        yield queue

        yield GaugeMetricFamily(
            "stormbed_agent_held_bytes",
            "Bytes of chunks whose collective has not started here yet",
            agent.held_bytes,
        )
        yield GaugeMetricFamily(
            "stormbed_agent_coordinator_connected",
            "1 while the coordinator is reached",
            agent.coordinator.connected,
        )
        yield GaugeMetricFamily(
            "stormbed_agent_links_down", "Links that are down, as the controller told", len(agent.now.down)
        )
        yield CounterMetricFamily(
            "stormbed_agent_late_frames", "Frames of jobs that were over", agent.late_frames
        )
        yield CounterMetricFamily("stormbed_agent_failed_jobs", "Jobs stopped for a cause", agent.failed_jobs)
        control = CounterMetricFamily(
            "stormbed_agent_control_sent_bytes",
            "Bytes to the coordinator, by what they are for",
            labels=["class"],
        )
        for purpose in CLASSES:
            control.add_metric([purpose], agent.coordinator.sent[purpose])
        yield control
        yield from self._jobs()
        yield from self._network()
        yield from self._coflows()

    def _coflows(self) -> Iterator[Metric]:
        agent, coflows = self._agent, self._agent.coflows
        yield GaugeMetricFamily(
            "stormbed_agent_coflow_connected", "1 while a coflow coordinator is reached", coflows.connected
        )
        yield GaugeMetricFamily(
            "stormbed_agent_coflow_map_version",
            "Version of the map of levels in force; 0 = no order",
            0 if coflows.map is None else coflows.map.version,
        )
        level = GaugeMetricFamily(
            "stormbed_agent_coflow_level", "Level of a job in that map; 7 goes first", labels=["run"]
        )
        if coflows.map is not None:
            for job in agent.jobs.values():
                place = coflows.map.places.get(job.job.name)
                level.add_metric([job.job.name], 0 if place is None else place.level)
        yield level
        yield CounterMetricFamily(
            "stormbed_agent_gate_wait_seconds",
            "What chunks under an order have waited here before they left, added up",
            coflows.gate_wait_ns / 1e9,
        )
        yield CounterMetricFamily(
            "stormbed_agent_gated_chunks", "Chunks that left under an order", coflows.gated_chunks
        )

    def _jobs(self) -> Iterator[Metric]:
        collectives = CounterMetricFamily(
            "stormbed_agent_collectives", "Collectives completed here", labels=["run"]
        )
        results = CounterMetricFamily(
            "stormbed_agent_result_bytes", "Bytes of results that reached this site", labels=["run"]
        )
        version = GaugeMetricFamily(
            "stormbed_agent_policy_version", "Newest policy installed here", labels=["run"]
        )
        iteration = GaugeMetricFamily(
            "stormbed_agent_iteration", "Iteration last reported by a worker here", labels=["run"]
        )
        held = GaugeMetricFamily(
            "stormbed_agent_held_chunks", "Chunks whose collective has not started here yet", labels=["run"]
        )
        arrived = CounterMetricFamily(
            "stormbed_agent_received_chunks", "Chunks that came from other sites", labels=["run"]
        )
        again = CounterMetricFamily(
            "stormbed_agent_duplicate_messages", "Messages dropped, as handled before", labels=["run"]
        )
        wait = HistogramMetricFamily(
            "stormbed_agent_release_wait_seconds",
            "From the last call of this site's workers to the start of the collective here",
            labels=["run"],
        )
        segment = InfoMetricFamily("stormbed_agent_segment", "What the workers run", labels=["run"])
        seconds = HistogramMetricFamily(
            "stormbed_agent_synchronisation_seconds",
            "From the last call of this site's workers to the last result here",
            labels=["run"],
        )
        for job in self._agent.jobs.values():
            name, here, progress = [job.job.name], job.collectives, job.progress
            collectives.add_metric(name, here.completed)
            results.add_metric(name, here.result_bytes)
            version.add_metric(name, here.machine.version)
            if progress.iteration >= 0:
                iteration.add_metric(name, progress.iteration)
            held.add_metric(name, here.held_chunks)
            arrived.add_metric(name, here.chunks_received)
            again.add_metric(name, here.machine.duplicates)
            wait.add_metric(name, here.release_wait.buckets(), here.release_wait.sum)
            segment.add_metric(name, {"segment": progress.segment, "scheduler": progress.scheduler})
            seconds.add_metric(name, here.synchronisation.buckets(), here.synchronisation.sum)
        yield from (collectives, results, version, iteration, held, arrived, again, segment, seconds, wait)

    def _network(self) -> Iterator[Metric]:
        names = self._agent.config.topology.site_names
        estimates = GaugeMetricFamily(
            "stormbed_agent_estimate_bps",
            "Measured rate from a site to this one over a path",
            labels=["run", "src", "path"],
        )
        chunks = CounterMetricFamily(
            "stormbed_agent_path_chunks",
            "Chunks queued, by path and whether it was another than their hop's own",
            labels=["run", "peer", "path", "auxiliary"],
        )
        received = CounterMetricFamily(
            "stormbed_agent_auxiliary_received_chunks",
            "Chunks that came over an auxiliary path",
            labels=["run"],
        )
        reports = CounterMetricFamily(
            "stormbed_agent_estimate_report_bytes", "Bytes of reports to the coordinator", labels=["run"]
        )
        probes = CounterMetricFamily("stormbed_agent_probe_bytes", "Bytes of probes sent", labels=["run"])
        for job in self._agent.jobs.values():
            run, network = job.job.name, job.network
            for (peer, path), rate in network.estimates.items():
                estimates.add_metric([run, names[peer], str(path)], rate)
            for (peer, path, auxiliary), count in network.chunks.items():
                chunks.add_metric([run, names[peer], str(path), str(int(auxiliary))], count)
            received.add_metric([run], network.auxiliary_received)
            reports.add_metric([run], network.report_bytes)
            probes.add_metric([run], network.probe_bytes)
        yield from (estimates, chunks, received, reports, probes)
