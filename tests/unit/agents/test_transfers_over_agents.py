"""Transfers decided one by one over real agents and TCP: exact sums, lost frames, changes of scheduler."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents.control import CoordinatorClient
from agents.decision_file import decision_path
from agents.planning.base import NetworkView
from agents.planning.registry import SchedulerSpec, get_scheduler
from agents.planning.tsengine import TsEngine
from agents.sync.decisions import replay
from agents.wire import Header
from topologies.errors import RunFailedError

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]
Changing: tuple[SchedulerSpec, ...] = ("tsengine", "netstorm", "tsengine")


def tsengine(lease_s: float) -> SchedulerSpec:
    return {"name": "tsengine", "options": {"lease_s": lease_s}}


def sums(client: Any, elements: int, dtype: str = "float32") -> None:
    """One all-reduce, checked to the bit."""
    rows = np.arange(elements) % 97
    array = (rows * (client.rank + 1)).astype(dtype)
    client.allreduce(array).wait()
    world = client.world_size
    assert np.array_equal(array, (rows * (world * (world + 1) // 2)).astype(dtype))


def conduct(runner: CoordinatorClient, specs: tuple[SchedulerSpec, ...]) -> list[dict[str, Any]]:
    done = [
        runner.run_segment("job", {"label": str(k), "scheduler": spec}, timeout=50)
        for k, spec in enumerate(specs)
    ]
    runner.close_job("job")
    return done


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("topology", "workers", "chunk_elements"),
    [("triangle", {"dc1": 1, "dc2": 2, "dc3": 1}, 3_331), ("netstorm-9", {}, 9_973), ("pair", {}, 1)],
)
def test_schedulers_change_between_segments(
    make_cluster: Any, everywhere: Everywhere, topology: str, workers: dict[str, int], chunk_elements: int
) -> None:
    cluster = make_cluster(topology)
    runner = cluster.runner()
    counts = dict.fromkeys(cluster.names, 1) | workers
    runner.open_job({"job": "job", "sites": counts, "deadline_s": 50, "chunk_elements": chunk_elements})
    largest = 20 if chunk_elements == 1 else 123_457

    def work(site: int, worker: int) -> None:
        with cluster.join(site, worker=worker) as client:
            while client.next_segment() is not None:
                if client.rank == 1:
                    time.sleep(0.05)  # a straggler
                for elements in (1, largest, largest - 1):
                    sums(client, elements)
                sums(client, 7, "int64")  # no gradient: takes the tree
                client.barrier()

    places = [(k, w) for k, name in enumerate(cluster.names) for w in range(counts[name])]
    jobs: dict[Any, Callable[[], Any]] = {place: functools.partial(work, *place) for place in places}
    done = everywhere({"runner": lambda: conduct(runner, Changing)} | jobs)["runner"]
    assert [entry["plan"]["scheduler"] for entry in done] == list(Changing)
    assert [entry["plan"].get("mode") for entry in done] == ["per-transfer", None, "per-transfer"]

    written = decision_path(cluster.config.run_dir, "job").read_text().splitlines()
    records = [json.loads(line) for line in written]
    assert {record["segment"] for record in records} == {"0", "2"}
    assert replay(records, lambda: TsEngine().decider(len(cluster.names)), cluster.names) is None
    received = sum(record["event"] == "measured" for record in records)
    decided = [record["decision"]["phase"] for record in records if record["decision"] is not None]
    # Every chunk of every round: as many transfers up as down, one a site but the server.
    assert decided.count("push") == decided.count("pull") == received > 0


def lose_chunks(cluster: Any, site: int, lost: Callable[[Header], bool]) -> list[Header]:
    """Have the agent of a site believe that it sends some chunks; returns the list of them."""
    agent = cluster.agents[site]
    send, dropped = agent.transport.send, []

    def send_or_not(peer: int, path: int, header: Header, payload: Any, **options: Any) -> None:
        if header.get("kind") == "chunk" and lost(header):
            dropped.append(header)
            if options["sent"] is not None:
                options["sent"]()
            return
        send(peer, path, header, payload, **options)

    agent.transport.send = send_or_not
    return dropped


@pytest.mark.timeout(60)
def test_a_chunk_that_is_lost_is_sent_again_when_its_lease_ends(
    make_cluster: Any, everywhere: Everywhere
) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "deadline_s": 40, "chunk_elements": 999}
    )
    once: set[tuple[Any, ...]] = set()

    def first_of_its_kind(header: Header) -> bool:
        kind = (header["direction"],)
        return kind not in once and not once.add(kind)  # type: ignore[func-returns-value]

    # Some site takes in and gives on; whichever does, loses the first of each.
    dropped = [lose_chunks(cluster, site, first_of_its_kind) for site in range(3)]

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                sums(client, 4_567)

    everywhere(
        {"runner": lambda: conduct(runner, (tsengine(1.0),))} | {k: lambda k=k: work(k) for k in range(3)}
    )
    assert sorted(header["direction"] for headers in dropped for header in headers) == ["down", "up"]


@pytest.mark.timeout(60)
def test_what_never_arrives_stops_the_job_with_its_cause(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "deadline_s": 40, "chunk_elements": 999}
    )
    lose_chunks(cluster, 1, lambda header: True)

    def work(site: int) -> None:
        with cluster.join(site) as client:
            client.next_segment()
            with pytest.raises(RunFailedError, match="4 transfers in a row did not arrive"):
                sums(client, 999)

    def run() -> None:
        with pytest.raises(
            RunFailedError, match="in a row did not arrive, at last chunk 0 of collective 0 from"
        ):
            runner.run_segment("job", {"label": "x", "scheduler": tsengine(0.2)}, timeout=40)

    everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(2)})


@pytest.mark.timeout(60)
def test_a_late_collective_is_explained_by_the_transfers_under_way(
    make_cluster: Any, everywhere: Everywhere
) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "deadline_s": 1, "chunk_elements": 999}
    )
    lose_chunks(cluster, 1, lambda header: True)
    why = r"waited 1 s for collective 0 of job job: chunk 0 from \w+ to \w+ under way"

    def work(site: int) -> None:
        with cluster.join(site) as client:
            client.next_segment()
            with pytest.raises(RunFailedError, match=why):
                sums(client, 999)

    def run() -> None:
        with pytest.raises(RunFailedError, match=why):
            runner.run_segment("job", {"label": "x", "scheduler": tsengine(30)}, timeout=40)

    everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(2)})


@pytest.mark.timeout(60)
def test_a_new_plan_inside_a_collective(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "deadline_s": 40, "chunk_elements": 997}
    )
    plan = get_scheduler("packing", cluster.names).plan(NetworkView.from_topology(cluster.topology))
    asked: list[int] = []
    switched: list[int] = []

    def replan_at_every_release() -> None:
        """Ask as soon as a collective is released, when its leaves have sent no more than their window."""
        (job,) = cluster.coordinator.jobs.values()
        send = job._send

        def replan(seq: int) -> None:
            asked.append(seq)
            job.run(job.machine.replan_within(seq, plan, 990 - seq, {}))

        def noting(site: int, kind: str, body: dict[str, Any]) -> None:
            send(site, kind, body)
            message = body.get("message", {})
            if site != 0:
                return
            if message.get("type") == "switchmessage" and message["policy"] is not None:
                switched.append(message["seq"])
            if message.get("type") == "release":
                asyncio.get_running_loop().call_soon(replan, message["seq"])

        job._send = noting

    def work(site: int) -> None:
        with cluster.join(site) as client:
            client.next_segment()
            if site == 0:
                cluster.call(replan_at_every_release)
            for _ in range(3):
                sums(client, 1_000_001)
            client.next_segment()

    sites = {k: lambda k=k: work(k) for k in range(3)}
    everywhere({"runner": lambda: conduct(runner, ("packing",))} | sites)
    assert switched == asked == [0, 1, 2]


@pytest.mark.timeout(60)
def test_measured_rates_change_the_plan_inside_a_collective(make_cluster: Any, everywhere: Everywhere) -> None:
    """Loopback is nothing like the declared network, so the first look already leads to another plan."""
    cluster = make_cluster("netstorm-9")
    runner = cluster.runner()
    runner.open_job(
        {"job": "job", "sites": dict.fromkeys(cluster.names, 1), "deadline_s": 40, "chunk_elements": 997}
    )
    fields = {
        "label": "x",
        "scheduler": "packing",
        "awareness": {"estimator": "unbiased", "check_period_s": 0.05, "replan": "change", "probe_idle_s": 0},
        "policy": "within",
    }

    def work(site: int) -> None:
        with cluster.join(site) as client:
            client.next_segment()
            for _ in range(3):
                sums(client, 300_001)
            client.next_segment()

    def run() -> dict[str, Any]:
        done: dict[str, Any] = runner.run_segment("job", fields, timeout=50)
        runner.close_job("job")
        return done

    done = everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(9)})["runner"]
    inside = [entry for entry in done["policies"] if "from_chunk" in entry]
    assert inside, done["policies"]
    # 301 chunks; every new plan cuts what is left anew, which makes some more.
    assert all(0 < entry["from_chunk"] < 2 * 301 and entry["from_seq"] < 3 for entry in inside)
    assert {entry["reason"] for entry in inside} == {"rates"}
