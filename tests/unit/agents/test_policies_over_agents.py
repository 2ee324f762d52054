"""How policies come into force over real agents and TCP: with the barrier, and announced ahead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
