"""What agent and coordinator show to Prometheus: collected when asked, so that nothing is spent in

between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from agents.control_classes import CLASSES

if TYPE_CHECKING:
    from agents.agent import Agent
    from agents.coordinator import Coordinator

REQUEST_BYTES: Final = 16 * 1024
REQUEST_SECONDS: Final = 10.0


class AgentCollector(Collector):
    """Metrics of one agent, labelled with site names; `run` names a job, as `job` is Prometheus' own."""

    def __init__(self, agent: Agent) -> None:
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


class CoordinatorCollector(Collector):
    """Metrics of the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
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


class Server:
    """Serves one collector at http://ADDRESS/metrics, on the loop that it was started on.

    No thread: what is collected belongs to that loop, and a scrape takes it a few milliseconds.
    """

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._server: asyncio.Server | None = None

    async def start(self, endpoint: tuple[str, int]) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        self._server = await asyncio.start_server(self._serve, *endpoint, limit=REQUEST_BYTES)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection, as Prometheus' text format over HTTP/1.1."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                method, target = request.split(b" ", 2)[:2]
                known = target.split(b"?")[0] in (b"/", b"/metrics")
                if method != b"GET" or not known:
                    status, body = "404 Not Found", b"try GET /metrics\n"
                else:
                    status, body = "200 OK", generate_latest(self._registry)
                head = f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\n"
                head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or did not speak HTTP
        finally:
            writer.close()
