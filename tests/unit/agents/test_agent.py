"""Whole systems on loopback: exact sums, several jobs, and every way to fail, each with its named cause."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agents import agent as agent_module
from agents import wire
from agents.local import LocalClient
from topologies.errors import DeadlineError, RunFailedError

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]
SOON = 6.0
"""Seconds within which a death must be known everywhere. Two are what is promised on a machine with time to spare;
here others may be at work."""


def segment(label: str, scheduler: Any, **fields: Any) -> dict[str, Any]:
    return {"label": label, "scheduler": scheduler, "iterations": 2, "elements": 1000, **fields}


def open_job(cluster: Any, workers: dict[str, int] | None = None, **spec: Any) -> Any:
    runner = cluster.runner()
    sites = workers or dict.fromkeys(cluster.names, 1)
    runner.open_job({"job": "job", "sites": sites, "deadline_s": 20, **spec})
    return runner


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


def everyone_fails(clients: list[LocalClient], handles: list[Any], cause: str) -> None:
    start = time.monotonic()
    for client, handle in zip(clients, handles, strict=True):
        with pytest.raises(RunFailedError, match=cause):
            handle.wait(SOON)
        with pytest.raises(RunFailedError, match=cause):
            client.barrier()
        with pytest.raises(RunFailedError, match=cause):
            client.next_segment()
    assert time.monotonic() - start < SOON


def test_a_killed_worker_stops_the_job_everywhere_soon(make_cluster: Any) -> None:
    cluster = make_cluster("triangle")
    runner = open_job(cluster, {"dc1": 1, "dc2": 1, "dc3": 2}, scheduler="star")
    clients = [cluster.join(0), cluster.join(1), cluster.join(2, worker=1)]
    victim = cluster.numpy_worker("dc3")
    handles = [client.allreduce(np.zeros(500_000)) for client in clients]
    wait_until(lambda: runner.status()["jobs"][0]["joined"] == 4)
    os.kill(victim.pid, signal.SIGKILL)
    everyone_fails(clients, handles, rf"worker 0 of dc3 \(pid {victim.pid}\) ended")
    assert re_found(runner.status()["jobs"][0]["failure"], rf"worker 0 of dc3 \(pid {victim.pid}\) ended")
    runner.close_job("job")
    assert cluster.call(lambda: [len(agent.jobs) for agent in cluster.agents]) == [0, 0, 0]
    for client in clients:
        client.close()
    # The agents go on: the same job can be run again.
    runner.open_job({"job": "job", "sites": {"dc1": 1}, "scheduler": "star"})
    with cluster.join(0) as client:
        client.barrier().wait()
    runner.close_job("job")


def test_a_killed_worker_is_noticed_although_its_child_lives_on(make_cluster: Any) -> None:
    """As with the loader processes of a training framework, which inherit the connection."""
    cluster = make_cluster("pair")
    open_job(cluster, scheduler="star")
    client = cluster.join(0)
    script = """
import os, sys, time
from agents.local import LocalClient
client = LocalClient.connect(sys.argv[1], "dc2", "job", 0)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
client.barrier().wait()
"""
    command = [sys.executable, "-c", script, str(cluster.run_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        child = int(worker.stdout.readline())
        worker.kill()
        try:
            cause = rf"worker 0 of dc2 \(pid {worker.pid}\) ended"
            with pytest.raises(RunFailedError, match=cause):
                client.recv(np.zeros(1), 1).wait(SOON)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_agent_stops_the_job_everywhere_naming_its_site(
    make_cluster: Any, signal_number: int
) -> None:
    cluster = make_cluster("triangle", processes=True)
    runner = open_job(cluster, scheduler="star")
    clients = [cluster.join(k) for k in range(3)]
    handles = [client.allreduce(np.zeros(2_000_000)) for client in clients[:2]]
    agent = cluster.processes["dc3"]
    agent.send_signal(signal_number)
    everyone_fails(clients[:2], handles, rf"site dc3 was lost: its agent \(pid {agent.pid}\) is gone")
    with pytest.raises(RunFailedError, match="the agent of dc3"):
        clients[2].barrier().wait(SOON)
    assert runner.status()["agents"] == {"dc1": True, "dc2": True, "dc3": False}
    runner.close_job("job")
    cluster.spawn("dc3", "agents", "--site", "2", "--run-dir", str(cluster.run_dir))
    wait_until(lambda: runner.status()["agents"]["dc3"])


def test_a_killed_coordinator_stops_the_job_everywhere(make_cluster: Any) -> None:
    cluster = make_cluster("pair", processes=True)
    open_job(cluster, scheduler="star")
    clients = [cluster.join(k) for k in range(2)]
    handles = [clients[0].barrier(), clients[1].recv(np.zeros(3), 0)]
    cluster.processes["coordinator"].kill()
    # While it is ending it may still take a connection, and drop it.
    cluster.processes["coordinator"].wait(10)
    for k, (client, handle) in enumerate(zip(clients, handles, strict=True)):
        with pytest.raises(RunFailedError, match=f"the agent of {cluster.names[k]} lost the coordinator"):
            handle.wait(SOON)
        client.close()
    cluster.spawn("coordinator", "agents.coordinator", "--run-dir", str(cluster.run_dir))
    runner = open_job(cluster)
    assert runner.status()["agents"] == {"dc1": True, "dc2": True}


def test_a_runner_that_vanishes_takes_its_job_along(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    runner = open_job(cluster, scheduler="star")
    clients = [cluster.join(k) for k in range(2)]
    handles = [clients[0].barrier()]
    runner.close()
    everyone_fails(clients[:1], handles, "the runner that opened job job is gone")
    with pytest.raises(RunFailedError, match="the runner that opened job job is gone"):
        clients[1].next_segment()


class TestDeadlines:
    """A collective that takes too long names what was missing from whom.

    The deadlines leave a busy machine the time to bring the calls of all others to where they are waited for.
    """

    def test_a_worker_of_the_same_site(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, {"dc1": 1, "dc2": 2}, scheduler="star", deadline_s=1.5)
        clients = [cluster.join(0), cluster.join(1), cluster.join(1, worker=1)]
        handles = [client.allreduce(np.zeros(10)) for client in clients[:2]]
        cause = r"worker 1 of dc2 did not call collective 0 \(allreduce sum float64 \[10\]\) within 1.5 s"
        everyone_fails(clients[:2], handles, cause)

    def test_a_site_that_is_not_ready(self, make_cluster: Any) -> None:
        cluster = make_cluster("triangle")
        open_job(cluster, scheduler="star", deadline_s=1.5)
        clients = [cluster.join(k) for k in range(3)]
        handles = [client.barrier() for client in clients[:2]]
        everyone_fails(clients[:2], handles, "waited 1.5 s for dc3 to be ready for collective 0")

    def test_chunks_that_do_not_come(self, make_cluster: Any) -> None:
        cluster = make_cluster("triangle")
        open_job(cluster, scheduler="star", deadline_s=1.5)
        clients = [cluster.join(k) for k in range(3)]
        cluster.call(lambda: setattr(cluster.agents[2].transport, "send", lambda *_, **__: None))
        handles = [client.allreduce(np.zeros(10, np.float32)) for client in clients]
        cause = (
            "open at dc1: the partial sum of chunk 0 from dc3; .* open at dc3: the result of chunk 0 from dc1"
        )
        everyone_fails(clients, handles, cause)
        with pytest.raises(RunFailedError) as failure:
            handles[0].wait()
        assert "at dc2" not in str(failure.value)  # which only waited for dc1

    def test_a_message_that_nobody_sends(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, scheduler="star", deadline_s=0.3)
        clients = [cluster.join(k) for k in range(2)]
        handles = [clients[0].recv(np.zeros(10), 1, tag=7)]
        cause = r"worker 0 of dc1 \(pid \d+\) waited 0.3 s for a message from rank 1 to rank 0 with tag 7"
        everyone_fails(clients[:1], handles, cause)

    def test_a_segment(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        runner = open_job(cluster)
        with pytest.raises(
            DeadlineError, match=r"waited 0\.2 s for worker 0 of dc1, worker 0 of dc2 to join job job"
        ):
            runner.run_segment("job", segment("a", "star"), start_timeout=0.2)

    def test_a_segment_that_does_not_end(self, make_cluster: Any, everywhere: Everywhere) -> None:
        cluster = make_cluster("pair")
        runner = open_job(cluster)

        def work(site: int) -> None:
            with cluster.join(site) as client:
                client.next_segment()
                with pytest.raises(RunFailedError, match=r"worker 0 of dc2 .* to finish segment slow"):
                    if site == 0:
                        client.next_segment()
                    else:
                        client.recv(np.zeros(1), 0).wait()

        def run() -> None:
            with pytest.raises(
                DeadlineError, match=r"waited 1.5 s for worker 0 of dc2 \(pid \d+\) to finish segment slow"
            ):
                # Time enough for the other one to have finished it.
                runner.run_segment("job", segment("slow", "star"), timeout=1.5)

        everywhere({"runner": run, 0: lambda: work(0), 1: lambda: work(1)})


class TestDisagreement:
    """Ranks that do not make the same calls are told so at once."""

    def test_within_a_site(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, {"dc1": 2, "dc2": 1}, scheduler="star")
        clients = [cluster.join(0), cluster.join(0, worker=1), cluster.join(1)]
        handles = [clients[0].allreduce(np.zeros(5)), clients[1].allreduce(np.zeros(6)), clients[2].barrier()]
        cause = r"rank 1 called allreduce sum float64 \[6\] as collective 0, but rank 0 called .* \[5\]"
        everyone_fails(clients, handles, cause)

    def test_between_sites(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, scheduler="star")
        clients = [cluster.join(0), cluster.join(1)]
        handles = [clients[0].allreduce(np.zeros(5)), clients[1].barrier()]
        everyone_fails(clients, handles, "the sites do not agree on collective 0")

    def test_a_worker_that_leaves_early(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, scheduler="star")
        clients = [cluster.join(0), cluster.join(1)]
        clients[1].close()
        handles = [clients[0].barrier()]
        everyone_fails(clients[:1], handles, r"worker 0 of dc2 \(pid \d+\) left job job before collective 0")

    def test_messages_of_different_lengths(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, scheduler="star")
        clients = [cluster.join(0), cluster.join(1)]
        handles = [clients[1].recv(np.zeros(5), 0)]
        clients[0].send(np.zeros(4), 1)
        cause = "message from rank 0 to rank 1 with tag 0 has 32 bytes, but its receiver expects 40"
        everyone_fails(clients[1:], handles, cause)

    def test_a_worker_that_gives_up(self, make_cluster: Any) -> None:
        cluster = make_cluster("pair")
        open_job(cluster, scheduler="star")
        clients = [cluster.join(0), cluster.join(1)]
        handles = [clients[0].barrier()]
        with pytest.raises(ZeroDivisionError), clients[1]:
            raise ZeroDivisionError("one over nothing")
        everyone_fails(clients[:1], handles, "worker 0 of dc2 .*: ZeroDivisionError: one over nothing")


def test_a_lost_connection_between_agents_stops_the_jobs_that_used_it(make_cluster: Any) -> None:
    cluster = make_cluster("triangle")
    open_job(cluster, scheduler="star")
    clients = [cluster.join(k) for k in range(3)]
    handles = [client.allreduce(np.ones(1000)) for client in clients]
    for handle in handles:
        handle.wait()
    handles = [client.barrier() for client in clients[:2]]  # the third keeps them waiting

    def cut() -> None:
        for inlet in tuple(cluster.agents[0].transport.inlets):
            inlet.close()

    cluster.call(cut)
    everyone_fails(clients[:2], handles, "the connection between dc2 and dc1 was lost")


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


def wait_until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "a condition did not come about"
        pause.wait(0.01)


def re_found(text: str, pattern: str) -> bool:
    return re.search(pattern, text) is not None
