"""Agents that measure what arrives, report it, probe idle links and take other paths: on loopback, whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents import wire
from agents.wire import ProtocolError
from topologies.errors import UsageError

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]
QUICK = {"check_period_s": 0.05, "min_message_bytes": 1000, "report_every_s": 0.02}


def train(
    cluster: Any,
    everywhere: Everywhere,
    segment: dict[str, Any],
    *,
    iterations: int = 20,
    elements: int = 300_000,
    pause: float = 0.0,
    look: Callable[[], Any] = lambda: None,
    job: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], Any]:
    """One segment whose every sum is compared; the runner's answer and what `look` saw before the end."""
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "chunk_elements": 10_000, **(job or {})}
    )
    n = len(cluster.names)

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                for iteration in range(iterations):
                    rows = np.arange(elements) % 97 + iteration
                    array = (rows * (client.rank + 1)).astype(np.float32)
                    client.allreduce(array).wait()
                    assert np.array_equal(array, (rows * (n * (n + 1) // 2)).astype(np.float32))
                    time.sleep(pause)

    def run() -> tuple[dict[str, Any], Any]:
        done = runner.run_segment("job", {"label": "a", "scheduler": "netstorm", **segment}, timeout=40)
        seen = cluster.call(look)
        runner.close_job("job")
        return done, seen

    return everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(n)})["runner"]


@pytest.mark.parametrize("estimator", ["published", "unbiased"])
def test_measured_rates_reach_the_coordinator_and_change_the_plan_between_exact_sums(
    make_cluster: Any, everywhere: Everywhere, estimator: str
) -> None:
    cluster = make_cluster("triangle")
    awareness = {"estimator": estimator, "replan": "change", **QUICK}

    def look() -> dict[str, Any]:
        (job,) = cluster.coordinator.jobs.values()
        return {
            "rates": job.watch.rates(),
            "reports": sum(j.network.reports for a in cluster.agents for j in a.jobs.values()),
        }

    done, seen = train(cluster, everywhere, {"awareness": awareness}, pause=0.02, look=look)
    network = done["network"]
    assert network["awareness"] == estimator
    assert set(network["measured"]) == {f"{u}>{v}" for u in cluster.names for v in cluster.names if u != v}
    # What was measured is loopback's rate, not the declared one, and the plan follows it.
    assert network["replans"] >= 1 and network["checks"] >= network["replans"]
    assert 1 < done["policy_version"] <= 1 + network["replans"]
    versions = [entry["version"] for entry in done["policies"]]
    assert versions == list(range(1, len(versions) + 1)) and len(versions) > 1
    times = [entry["monotonic_ns"] for entry in done["policies"]]
    assert times == sorted(times)
    assert any(rate != 100e6 for rate in seen["rates"].values())
    assert network["reports"] <= seen["reports"]
    assert 0 < network["report_bytes"] < 200 * network["reports"]


def test_off_is_the_default_and_sends_nothing_more(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("triangle")
    stamped: list[Any] = []
    for agent in cluster.agents:
        arrived = agent.arrived
        agent.arrived = lambda peer, path, frame, arrived=arrived: (
            stamped.append(frame.header.get(wire.STAMP)),
            arrived(peer, path, frame),
        )

    def look() -> list[Any]:
        return [job.network.estimates for agent in cluster.agents for job in agent.jobs.values()]

    done, seen = train(cluster, everywhere, {}, iterations=3, look=look)
    assert done["network"]["reports"] == done["network"]["replans"] == done["network"]["checks"] == 0
    assert seen == [{}, {}, {}] and stamped and set(stamped) == {None}
    assert [entry["version"] for entry in done["policies"]] == [1]


def test_idle_links_are_probed_and_measured_within_bounds(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("triangle")
    awareness = {"estimator": "unbiased", "probe_idle_s": 0.2, "probe_bytes": 100_000, **QUICK}
    star = {"scheduler": {"name": "star", "options": {"server": "dc1"}}, "awareness": awareness}

    def look() -> dict[str, Any]:
        links = {}
        for agent in cluster.agents:
            for job in agent.jobs.values():
                links[agent.name] = (job.network.estimates, job.network.probes, job.network.probe_bytes)
        return links

    _, seen = train(cluster, everywhere, star, iterations=15, pause=0.1, elements=3_000_000, look=look)
    # dc2 - dc3 carries nothing of the star.
    for name, peer in (("dc2", 2), ("dc3", 1)):
        estimates, probes, probe_bytes = seen[name]
        assert any(way[0] == peer for way in estimates)
        assert probes >= 1 and probe_bytes == probes * 100_000


@pytest.mark.parametrize("rule", ["threshold", "capacity"])
def test_chunks_take_other_paths_when_their_own_is_busy_and_sums_stay_exact(
    make_cluster: Any, everywhere: Everywhere, rule: str
) -> None:
    cluster = make_cluster("triangle")
    star = {"name": "star", "options": {"server": "dc1"}}

    def look() -> dict[str, Any]:
        sent: dict[tuple[int, int, bool], int] = {}
        received = 0
        for agent in cluster.agents:
            for job in agent.jobs.values():
                received += job.network.auxiliary_received
                for (peer, _, other), count in job.network.chunks.items():
                    key = (agent.site, peer, other)
                    sent[key] = sent.get(key, 0) + count
        return {"sent": sent, "received": received}

    segment = {"scheduler": star, "auxiliary": {"rule": rule, "limit": 1}}
    _, seen = train(cluster, everywhere, segment, iterations=10, elements=2_000_000, look=look)
    detours = {(src, dst): n for (src, dst, other), n in seen["sent"].items() if other}
    if rule == "threshold":
        assert sum(detours.values()) > 0
    else:
        # The star's own links run at their full rate, and every other path uses one of them.
        assert not detours
    assert seen["received"] == sum(detours.values())


def test_options_that_make_no_sense_are_refused_with_the_field(make_cluster: Any) -> None:
    runner = make_cluster("pair").runner()
    job = {"job": "job", "sites": {"dc1": 1, "dc2": 1}}
    with pytest.raises(UsageError, match=r"awareness\.estimator"):
        runner.open_job({**job, "awareness": "psychic"})
    runner.open_job({**job, "awareness": "unbiased", "auxiliary": False})
    with pytest.raises(UsageError, match=r"segment a: auxiliary\.rule"):
        runner.run_segment("job", {"label": "a", "scheduler": "star", "auxiliary": "sometimes"})
    with pytest.raises(UsageError, match=r"segment a: awareness\.check_period_s"):
        runner.run_segment(
            "job",
            {"label": "a", "scheduler": "star", "awareness": {"estimator": "published", "check_period_s": 0}},
        )
    runner.close_job("job")


def test_an_agent_takes_no_options_that_its_coordinator_should_have_refused(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    cluster.runner().open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    agent = cluster.agents[0]

    def say() -> None:
        body = {"fields": {}, "scheduler": "star", "options": {"awareness": {"estimator": "psychic"}}}
        agent._coordinator_said("segment", {"job": next(iter(agent.jobs)), **body})

    with pytest.raises(ProtocolError, match=r"^awareness\.estimator: should be 'off', .* not 'psychic'$"):
        cluster.call(say)
