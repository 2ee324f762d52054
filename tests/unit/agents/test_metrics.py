"""Metrics as Prometheus reads them, over HTTP from running agents."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agents.control_classes import CLASSES
from agents.histogram import BUCKETS, Histogram


def scrape(endpoint: tuple[str, int]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://{endpoint[0]}:{endpoint[1]}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return samples


def test_what_agents_and_coordinator_show(make_cluster: Any, everywhere: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    # Every message is timed, and only the first time is reported.
    awareness = {"estimator": "published", "min_message_bytes": 1000, "window": 1, "report_rate": 1e9}
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}, "awareness": awareness})
    size = 400_000
    seen: dict[str, Any] = {}

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                for iteration in range(3):
                    client.allreduce(np.ones(size, np.float32)).wait()
                    client.report({"segment": "a", "iteration": iteration})

    def run() -> None:
        runner.run_segment("job", {"label": "a", "scheduler": "star"})
        for k in range(2):
            seen[cluster.names[k]] = scrape(cluster.addresses.metrics[k])
        seen["coordinator"] = scrape(cluster.addresses.coordinator_metrics)
        runner.close_job("job")

    everywhere({"runner": run, 0: lambda: work(0), 1: lambda: work(1)})
    job = (("run", "job"),)
    for name, peer in (("dc1", "dc2"), ("dc2", "dc1")):
        agent = seen[name]
        lane = (("class", "0"), ("path", "0"), ("peer", peer))
        assert agent["stormbed_agent_sent_bytes_total", lane] > 3 * 4 * size
        assert agent["stormbed_agent_sent_frames_total", lane] == 12
        assert agent["stormbed_agent_lost_connections_total", lane] == 0
        received = agent["stormbed_agent_received_bytes_total", (("path", "0"), ("peer", peer))]
        assert (
            3 * 4 * size
            < received
            == seen[peer]["stormbed_agent_sent_bytes_total", (*lane[:2], ("peer", name))]
        )
        assert agent["stormbed_agent_queue_chunks", (("first_hop", peer),)] == 0
        assert agent["stormbed_agent_collectives_total", job] == 3
        assert agent["stormbed_agent_result_bytes_total", job] == 3 * 4 * size
        assert agent["stormbed_agent_policy_version", job] == 1
        assert agent["stormbed_agent_iteration", job] == 2
        assert agent["stormbed_agent_held_chunks", job] == 0
        assert agent["stormbed_agent_held_bytes", ()] == 0
        assert agent["stormbed_agent_coordinator_connected", ()] == 1
        info = (*job, ("scheduler", "star-first"), ("segment", "a"))
        assert agent["stormbed_agent_segment_info", info] == 1
        assert agent["stormbed_agent_estimate_bps", (("path", "0"), *job, ("src", peer))] > 0
        way = (("auxiliary", "0"), ("path", "0"), ("peer", peer), *job)
        assert agent["stormbed_agent_path_chunks_total", way] == 12
        assert agent["stormbed_agent_auxiliary_received_chunks_total", job] == 0
        assert 0 < agent["stormbed_agent_estimate_report_bytes_total", job] < 500
        assert agent["stormbed_agent_probe_bytes_total", job] == 0
        control = {
            purpose: agent["stormbed_agent_control_sent_bytes_total", (("class", purpose),)] for purpose in CLASSES
        }
        assert control["reports"] == agent["stormbed_agent_estimate_report_bytes_total", job]
        assert control["barrier"] > 100 and control["acks"] > 20 and control["jobs"] > 100
        assert control["policies"] == control["transfers"] == control["routes"] == 0
        assert agent["stormbed_agent_received_chunks_total", job] == 12
        assert agent["stormbed_agent_duplicate_messages_total", job] == 0
        assert agent["stormbed_agent_release_wait_seconds_count", job] == 3
        assert agent["stormbed_agent_synchronisation_seconds_count", job] == 3
        assert 0 < agent["stormbed_agent_synchronisation_seconds_sum", job] < 10
        assert agent["stormbed_agent_synchronisation_seconds_bucket", (("le", "+Inf"), *job)] == 3
    coordinator = seen["coordinator"]
    assert coordinator["stormbed_coordinator_agent_connected", (("site", "dc2"),)] == 1
    assert coordinator["stormbed_coordinator_jobs", ()] == 1
    assert coordinator["stormbed_coordinator_released_collectives_total", job] == 3
    assert coordinator["stormbed_coordinator_policy_version", job] == 1
    rates = [
        coordinator["stormbed_coordinator_rate_bps", (("dst", dst), *job, ("src", src))]
        for src, dst in (("dc1", "dc2"), ("dc2", "dc1"))
    ]
    assert all(rate > 0 for rate in rates)
    assert coordinator["stormbed_coordinator_estimate_reports_total", job] == 2
    assert coordinator["stormbed_coordinator_replans_total", job] == 0
    for purpose, least in (("policies", 100), ("barrier", 100), ("jobs", 100)):
        assert coordinator["stormbed_coordinator_sent_bytes_total", (("class", purpose), ("site", "dc2"))] > least
    after = scrape(cluster.addresses.metrics[0])
    assert not any(labels == job for _, labels in after)  # a closed job is gone


def test_other_requests_are_answered_and_noise_is_not(make_cluster: Any) -> None:
    host, port = make_cluster("pair").addresses.metrics[0]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{host}:{port}/secrets", timeout=5)
    for noise in (b"\r\n\r\n", b"x" * 40_000, b"GET\r\n\r\n"):
        with socket.create_connection((host, port), timeout=5) as sock:
            sock.sendall(noise)
            try:
                assert sock.recv(100) == b""
            except ConnectionResetError:
                pass
    assert scrape((host, port))


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.01, 0.011, 5000.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert buckets["0.01"] == 2 and buckets["0.03"] == 3 and buckets[str(BUCKETS[-1])] == 3
    assert buckets["+Inf"] == 4 and histogram.sum == pytest.approx(5000.021)
