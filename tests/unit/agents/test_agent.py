"""Whole systems on loopback: exact sums, several jobs, and frames that make no sense or come early."""

from __future__ import annotations

import itertools
import socket
import threading
from typing import Any

import numpy as np
import pytest

from agents import agent as agent_module
from agents import wire
from topologies.errors import RunFailedError

from .jobs import Everywhere, open_job, segment, wait_until


def test_exact_sums_on_nine_sites_under_changing_schedulers(
    make_cluster: Any, everywhere: Everywhere
) -> None:
    cluster = make_cluster("netstorm-9")
    runner = open_job(cluster)

    def work(site: int) -> list[str]:
        served = []
        with cluster.join(site) as client:
            while (fields := client.next_segment()) is not None:
                served.append(fields["label"])
                rows = np.arange(fields["elements"]) % 97
                array = (rows * (client.rank + 1)).astype(np.float32)
                client.allreduce(array).wait()
                assert np.array_equal(array, (rows * 45).astype(np.float32))
        return served

    def run() -> list[str]:
        labels = []
        cases = [(1, "star-first"), (1, "netstorm"), (1_234_567, "star-first"), (1_234_567, "netstorm")]
        for size, scheduler in [*cases, (2_000_000, "star-first"), (2_000_000, "netstorm")]:
            labels.append(f"{scheduler} {size}")
            done = runner.run_segment("job", segment(labels[-1], scheduler, elements=size), timeout=30)
            assert done["segment"] == labels[-1] and done["collectives"] == len(labels)
            assert done["plan"]["scheduler"] == scheduler
            assert done["policy_version"] == len(labels)  # every segment changed the plan
        runner.close_job("job")
        return labels

    results = everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(9)})
    assert all(results[k] == results["runner"] for k in range(9))


def test_numpy_workers_as_processes_with_two_workers_a_site(make_cluster: Any) -> None:
    cluster = make_cluster("pair", processes=True)
    runner = open_job(cluster, {"dc1": 2, "dc2": 2}, chunk_elements=10_000)
    places = list(itertools.product(("dc1", "dc2"), (0, 1)))
    for site, worker in places:
        cluster.numpy_worker(site, worker)
    many = {"elements": [1, 123_456, 40_000], "iterations": 3, "dtype": "float64", "seed": 3}
    runner.run_segment("job", segment("first", "star", **many), start_timeout=30, timeout=30)
    compute = {"mean_s": 0.05, "sites": {"dc2": {"mean_s": 0.02}}}
    runner.run_segment("job", segment("second", "netstorm", compute=compute), timeout=30)
    runner.close_job("job")
    for site, worker in places:
        assert cluster.processes[f"job-{site}-{worker}"].wait(10) == 0, cluster.log(f"job-{site}-{worker}")
        records = cluster.trace(site, worker)
        assert [(r["segment"], r["iteration"]) for r in records] == [
            ("first", 0),
            ("first", 1),
            ("first", 2),
            ("second", 0),
            ("second", 1),
        ]
        assert all(r["start_ns"] <= r["ready_ns"] <= r["done_ns"] <= r["end_ns"] for r in records)
        lasted = (records[-1]["ready_ns"] - records[-1]["start_ns"]) / 1e9
        assert lasted >= (0.05 if site == "dc1" else 0.02)


def test_a_wrong_sum_stops_the_job_naming_the_first_wrong_element(
    make_cluster: Any, everywhere: Everywhere
) -> None:
    """The worker's check is real: another rank that adds something else is found out."""
    cluster = make_cluster("pair")
    runner = open_job(cluster)
    worker = cluster.numpy_worker("dc1")

    def spoil() -> None:
        with cluster.join(1) as client:
            assert client.next_segment() is not None
            client.allreduce(np.full(1000, 3, np.float32)).wait()
            with pytest.raises(RunFailedError, match="worker 0 of dc1"):
                client.next_segment()

    def run() -> None:
        with pytest.raises(
            RunFailedError, match=r"worker 0 of dc1 \(pid \d+\): iteration 0: \d+ of 1000 elements are wrong"
        ):
            runner.run_segment("job", segment("a", "star"), start_timeout=20)

    everywhere({"runner": run, "spoiler": spoil})
    assert worker.wait(10) == 5
    assert "elements are wrong, the first at" in cluster.log("job-dc1-0")


def test_two_jobs_at_once_do_not_mix(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    for number in (1, 2):
        runner.open_job(
            {
                "job": f"job {number}",
                "sites": dict.fromkeys(cluster.names, 1),
                "scheduler": ("star-all", "netstorm")[number - 1],
                "chunk_elements": 5000,
            }
        )

    def work(site: int, number: int) -> None:
        with cluster.join(site, f"job {number}") as client:
            for step in range(10):
                array = np.full(30_000, number * (client.rank + 1) + step, np.float32)
                client.allreduce(array).wait()
                assert np.all(array == 6 * number + 3 * step)

    everywhere({(k, j): lambda k=k, j=j: work(k, j) for k in range(3) for j in (1, 2)})
    for number in (1, 2):
        runner.close_job(f"job {number}")
    assert cluster.call(lambda: [len(agent.jobs) for agent in cluster.agents]) == [0, 0, 0]


def test_a_job_of_some_sites_and_the_same_name_again(make_cluster: Any, everywhere: Everywhere) -> None:
    cluster = make_cluster("netstorm-9")
    for members in (("dc7", "dc2"), ("dc1", "dc2", "dc4")):  # the first two are not neighbours
        runner = open_job(cluster, dict.fromkeys(members, 1), scheduler="netstorm")

        def work(name: str, members: tuple[str, ...] = members) -> None:
            with cluster.join(cluster.names.index(name)) as client:
                assert client.site_names == tuple(sorted(members))
                assert client.site_names[client.rank] == name
                array = np.full(250_000, client.rank, np.float64)
                client.allreduce(array).wait()
                assert np.all(array == sum(range(len(members))))

        everywhere({name: lambda name=name, work=work: work(name) for name in members})
        runner.close_job("job")


def test_frames_that_make_no_sense_end_their_connection_and_harm_nobody(
    make_cluster: Any, everywhere: Everywhere
) -> None:
    cluster = make_cluster("triangle")
    open_job(cluster, scheduler="star")
    wire_name = cluster.call(lambda: next(iter(cluster.agents[0].jobs)))
    chunk = {"kind": "chunk", "job": wire_name, "seq": 0, "version": 1, "part": 0, "chunk": 0}
    chunk |= {"direction": "up", "src": 2, "tree": 0, "dtype": "float32"}
    bad = [
        {"kind": "dance", "job": wire_name},
        {**chunk, "seq": "x"},
        {**chunk, "direction": "sideways"},
        {**chunk, "dtype": "nonsense"},
        {key: value for key, value in chunk.items() if key != "tree"},
        {"kind": "message", "job": wire_name, "src": 2, "dst": 1, "tag": 0},
        {"kind": "message", "job": wire_name, "src": 2, "dst": 0},
    ]
    for header in bad:
        with socket.create_connection(cluster.addresses.data[0], timeout=5) as sock:
            sock.sendall(wire.encode_bytes({"kind": "hello", "site": 2, "path": 0}))
            sock.sendall(wire.encode_bytes(header, b"1234"))
            try:
                assert sock.recv(10) == b"", header
            except ConnectionResetError:
                pass
    # Frames of a job that is over are only counted.
    with socket.create_connection(cluster.addresses.data[0], timeout=5) as sock:
        sock.sendall(wire.encode_bytes({"kind": "hello", "site": 2, "path": 0}))
        sock.sendall(wire.encode_bytes({**chunk, "job": "of yesterday"}, b"1234"))
        wait_until(lambda: cluster.agents[0].late_frames == 1)

    def work(site: int) -> None:
        with cluster.join(site) as client:
            array = np.ones(300_000, np.float32)
            client.allreduce(array).wait()
            assert np.all(array == 3)

    everywhere({k: lambda k=k: work(k) for k in range(3)})


def test_chunks_that_come_early_make_the_agent_hold_and_go_on(
    make_cluster: Any, everywhere: Everywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dc1's releases are late, so that the other site's chunks overtake them; it stops reading, then goes

    on.
    """
    monkeypatch.setattr(agent_module, "HOLD_BYTES", 1_000_000)
    cluster = make_cluster("pair")
    open_job(cluster, scheduler="star", chunk_elements=50_000)
    agent = cluster.agents[0]
    late: list[tuple[str, Any]] = []
    holding = threading.Event()

    def intercept() -> None:
        stream = agent.coordinator._stream
        original = stream.on_frame

        def on_frame(stream: Any, kind: str, body: Any) -> None:
            if kind == "machine" and not holding.is_set():
                late.append((kind, body))
            else:
                original(stream, kind, body)

        stream.on_frame = on_frame

    cluster.call(intercept)

    def work(site: int) -> None:
        with cluster.join(site) as client:
            arrays = [np.full(500_000, client.rank + 1 + k, np.float32) for k in range(4)]
            handles = [client.allreduce(array) for array in arrays]
            if site == 0:
                wait_until(lambda: agent.transport.holding)
                assert 1_000_000 < agent.held_bytes < 4_000_000
                holding.set()
                cluster.call(lambda: [agent._coordinator_said(*item) for item in late])
            for k, (array, handle) in enumerate(zip(arrays, handles, strict=True)):
                handle.wait()
                assert np.all(array == 3 + 2 * k)

    everywhere({k: lambda k=k: work(k) for k in range(2)})
    assert not agent.transport.holding and agent.held_bytes == 0
