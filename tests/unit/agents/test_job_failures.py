"""Every way in which a job over whole systems fails, each with its named cause, soon, and everywhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from agents.local import LocalClient
from topologies.errors import DeadlineError, RunFailedError

from .jobs import Everywhere, open_job, segment, wait_until

SOON = 6.0
"""Seconds within which a death must be known everywhere. Two are what is promised on a machine with time to spare;
here others may be at work."""


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


def re_found(text: str, pattern: str) -> bool:
    return re.search(pattern, text) is not None
