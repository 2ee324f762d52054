"""How policies come into force over real agents and TCP: with the barrier, and announced ahead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.planning.registry import get_scheduler
from agents.views import network_view

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]
RANDOM = {"name": "netstorm", "options": {"paths": "random"}}


def sums(client: Any, count: int, elements: int) -> None:
    rows = np.arange(elements) % 97
    world = client.world_size
    wanted = (rows * (world * (world + 1) // 2)).astype("float32")
    for _ in range(count):
        array = (rows * (client.rank + 1)).astype("float32")
        client.allreduce(array).wait()
        assert np.array_equal(array, wanted)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("switch", ["barrier", "announced"])
def test_a_new_random_policy_for_every_collective(
    make_cluster: Any, everywhere: Everywhere, switch: str
) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1), "chunk_elements": 500})

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                sums(client, 40, 3_001)

    def conduct() -> dict[str, Any]:
        policy = {"switch": switch, "every": 1}
        segment = {"label": "a", "scheduler": RANDOM, "policy": policy, "auxiliary": "random", "seed": 5}
        done = runner.run_segment("job", segment, timeout=60)
        # What was settled ahead at the end of one segment does not reach into the next one.
        same = None
        if switch == "announced":
            same = runner.run_segment("job", {"label": "c", "scheduler": "mlnet", "policy": "announced"}, timeout=60)
            assert [(p["reason"], p["from_seq"]) for p in same["policies"]] == [("start", 40)]
        star = runner.run_segment("job", {"label": "b", "scheduler": "star"}, timeout=60)
        assert [(p["reason"], p["from_seq"]) for p in star["policies"]] == [("start", 80 if same else 40)]
        runner.close_job("job")
        return done

    waits: list[float] = []
    for agent in cluster.agents:
        job_done = agent.coordinator._on_frame

        def watched(kind: str, body: Any, agent: Any = agent, then: Any = job_done) -> None:
            if kind == "end":
                (job,) = agent.jobs.values()
                waits.append(job.collectives.release_wait.sum)
                assert job.collectives.held_bytes == job.collectives.machine.held == 0
                assert job.collectives.machine.duplicates == 0
            then(kind, body)

        agent.coordinator._on_frame = watched
    jobs: dict[Any, Callable[[], Any]] = {k: functools.partial(work, k) for k in range(3)}
    done = everywhere({"runner": conduct} | jobs)["runner"]
    assert len(waits) == 3
    policies = done["policies"]
    assert len(policies) >= 20, "nearly every collective had a policy of its own"
    assert [p["version"] for p in policies] == list(range(1, len(policies) + 1))
    assert [p["reason"] for p in policies] == ["start"] + ["every"] * (len(policies) - 1)
    seqs = [p["from_seq"] for p in policies]
    assert seqs == sorted(seqs)
    if switch == "announced":
        early = [p["monotonic_ns"] - p["issued_ns"] for p in policies[1:]]
        assert min(early) > 0, "a policy is announced before it is in force"


def test_options_that_make_no_sense_are_refused(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1)})
    from topologies.errors import UsageError

    for policy, words in (({"ahead": 0}, "ahead"), ("soon", "switch"), ({"every": -1}, "every")):
        with pytest.raises(UsageError, match=f"segment a: .*{words}"):
            runner.run_segment("job", {"label": "a", "scheduler": "star", "policy": policy})
    runner.close_job("job")


def test_a_job_opened_with_a_plan_that_is_announced_begins(make_cluster: Any, everywhere: Everywhere) -> None:
    """Its sites hear of the plan after they have heard of the job: else they would wait for it for ever."""
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "scheduler": "star", "policy": "announced"}
    )
    everywhere({site: functools.partial(_join_and_sum, cluster, site) for site in range(2)})
    runner.close_job("job")


def test_plans_that_change_while_nothing_moves_are_kept_nowhere(make_cluster: Any, everywhere: Everywhere) -> None:
    """An agent's memory goes by the collectives under way, not by how often somebody has planned."""
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "scheduler": "star", "policy": "announced"}
    )
    (job,) = cluster.coordinator.jobs.values()
    stars = [
        get_scheduler({"name": "star", "options": {"server": name}}, cluster.names).plan(
            network_view(cluster.config, cluster.coordinator.rates, job.description.members)
        )
        for name in cluster.names
    ]
    for number in range(1, 301):
        cluster.call(lambda number=number: job.set_plan(stars[number % 3], {"reason": "rates"}))
    everywhere({site: functools.partial(_join_and_sum, cluster, site) for site in range(3)})
    kept = cluster.call(
        lambda: [job.machine.retained]
        + [own.collectives.machine.installed for agent in cluster.agents for own in agent.jobs.values()]
    )
    assert len(kept) == 4 and all(versions[-1] == 301 for versions in kept), "all have come"
    assert all(len(versions) <= 3 for versions in kept), kept
    runner.close_job("job")


def _join_and_sum(cluster: Any, site: int) -> None:
    with cluster.join(site) as client:
        sums(client, 1, 1_001)
