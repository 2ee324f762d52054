"""The coordinator: what it accepts, what it plans with, what it says when something is missing."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from typing import Any

import numpy as np
import pytest

from agents import coordinator as coordinator_module
from agents import wire
from agents.faults import Fault, root_faults
from agents.views import network_view
from topologies.errors import DeadlineError, RunFailedError, UsageError


def test_jobs_that_make_no_sense_are_refused_with_the_field(make_cluster: Any) -> None:
    runner = make_cluster("pair").runner()
    good = {"job": "job", "sites": {"dc1": 1, "dc2": 1}}
    for change, words in [
        ({"sites": {"dc7": 1}}, "pair has no site 'dc7'"),
        ({"sites": {}}, "sites: "),
        ({"sites": {"dc1": 1, "dc2": 0}}, "dc2 has no worker in job job"),
        ({"sites": {"dc1": "many"}}, "sites.dc1: "),
        ({"deadline_s": 0}, "deadline_s: "),
        ({"chunk_elements": 0}, "chunk_elements: "),
        ({"chunk_elements": 1 << 30}, "chunk_elements: "),
        ({"colour": "red"}, "colour: "),
        ({"scheduler": "stra"}, "star"),
    ]:
        with pytest.raises(UsageError, match=words):
            runner.open_job({**good, **change})
    connected = {"dc1": True, "dc2": True}
    assert runner.status() == {"schema": 1, "agents": connected, "links_down": [], "jobs": []}
    runner.open_job(good)
    with pytest.raises(UsageError, match="there is a job job already"):
        runner.open_job(good)
    with pytest.raises(UsageError, match="there is no job other"):
        runner.run_segment("other", {"label": "a"})
    with pytest.raises(UsageError, match="segment a of job job names no scheduler, and none is in use"):
        runner.run_segment("job", {"label": "a"})
    with pytest.raises(UsageError, match="segment a: chunks of 0 elements"):
        runner.run_segment("job", {"label": "a", "scheduler": "star", "chunk_elements": 0})
    with pytest.raises(UsageError, match="the coordinator has no verb 'dance'"):
        runner._call("dance")
    with pytest.raises(UsageError, match=r"status: .*unexpected keyword argument 'loudly'"):
        runner._call("status", loudly=True)
    runner.close_job("job")


def test_a_job_waits_for_the_agents_and_names_those_that_are_missing(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    cluster.do(cluster.agents[1].close())
    with (
        monkeypatch.context() as patch,
        pytest.raises(DeadlineError, match=r"waited 0\.3 s for the agents of dc2 to connect"),
    ):
        patch.setattr(coordinator_module, "OPEN_SECONDS", 0.3)
        runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1)})
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc3": 1}})
    runner.close_job("job")


def test_a_second_agent_of_a_site_is_refused_and_the_first_one_stays(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    hello = wire.pack_body({"role": "agent", "site": 0, "pid": 7, "version": wire.VERSION})
    with socket.create_connection(cluster.addresses.coordinator, timeout=5) as sock:
        sock.sendall(wire.encode_bytes({"kind": "hello"}, hello))
        received = b""
        while data := sock.recv(4096):
            received += data
    frames = wire.Decoder().feed(received)
    assert frames[-1].header == {"kind": "refused"}
    assert "dc1 has an agent already" in wire.unpack_body(frames[-1].payload)["why"]
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}, "scheduler": "star"})
    runner.close_job("job")


@pytest.mark.parametrize(
    "opening",
    [
        b"GET /status HTTP/1.1\r\n\r\n",
        wire.encode_bytes({"kind": "open_job"}, wire.pack_body({})),
        wire.encode_bytes({"kind": "hello"}, wire.pack_body({"role": "agent", "site": 0, "version": 99})),
        wire.encode_bytes({"kind": "hello"}, wire.pack_body({"role": "agent", "site": 9, "version": 1})),
        wire.encode_bytes({"kind": "hello"}, wire.pack_body([1, 2])),
        wire.encode_bytes({"kind": 5}),
    ],
)
def test_whoever_does_not_greet_properly_is_hung_up_on(make_cluster: Any, opening: bytes) -> None:
    cluster = make_cluster("pair")
    with socket.create_connection(cluster.addresses.coordinator, timeout=5) as sock:
        sock.sendall(opening)
        try:
            while sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert cluster.runner().status()["agents"] == {"dc1": True, "dc2": True}


def test_new_rates_change_the_plan_of_the_next_segment_under_the_same_workers(
    make_cluster: Any, everywhere: Any
) -> None:
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1)})

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                array = np.full(300_000, client.rank, np.float32)
                client.allreduce(array).wait()
                assert np.all(array == 3)

    def run() -> None:
        plans = [runner.run_segment("job", {"label": "before", "scheduler": "star-best"})["plan"]]
        with pytest.raises(UsageError, match="no link leads from dc1 to dc1"):
            runner.set_rates({("dc1", "dc1"): 1e6})
        with pytest.raises(UsageError, match="dc1 -> dc2 cannot have the rate -1"):
            runner.set_rates({("dc1", "dc2"): -1})
        # Leave only the links of the site that was not chosen before.
        chosen = plans[0]["roots"][0]["site"]
        other = next(name for name in cluster.names if name != chosen)
        fast = {
            (u, v): 1e9 if other in (u, v) else 1e6 for u in cluster.names for v in cluster.names if u != v
        }
        runner.set_rates(fast)
        again = runner.run_segment("job", {"label": "after", "scheduler": "star-best"})
        assert again["plan"]["roots"][0]["site"] == other and again["policy_version"] == 2
        # Without a scheduler the plan stays.
        assert runner.run_segment("job", {"label": "same"})["policy_version"] == 2
        runner.close_job("job")

    everywhere({"runner": run} | {k: lambda k=k: work(k) for k in range(3)})


def test_segments_hand_their_fields_to_the_workers_as_they_are(make_cluster: Any, everywhere: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    fields = {
        "label": "x",
        "scheduler": {"name": "netstorm", "options": {"roots": 1}},
        "anything": ["x" * 100_000, {"a": None}],
    }

    def work(site: int) -> Any:
        with cluster.join(site) as client:
            return [client.next_segment(), client.next_segment()]

    def run() -> None:
        runner.run_segment("job", fields)
        shown = [agent.jobs[next(iter(agent.jobs))].progress for agent in cluster.agents]
        assert [(c.segment, c.scheduler) for c in shown] == [("x", "netstorm")] * 2
        runner.close_job("job")

    results = everywhere({"runner": run, 0: lambda: work(0), 1: lambda: work(1)})
    assert results[0] == results[1] == [fields, None]


def test_a_worker_that_leaves_in_the_middle_of_a_segment_stops_it(make_cluster: Any, everywhere: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    cause = r"worker 0 of dc2 \(pid \d+\) left job job in the middle of segment x"

    def stay() -> None:
        with cluster.join(0) as client:
            client.next_segment()
            with pytest.raises(RunFailedError, match=cause):
                client.barrier().wait(5)

    def go() -> None:
        with cluster.join(1) as client:
            client.next_segment()

    def run() -> None:
        with pytest.raises(RunFailedError, match=cause):
            runner.run_segment("job", {"label": "x", "scheduler": "star"})

    everywhere({"runner": run, 0: stay, 1: go})


def test_closing_waits_for_the_workers_and_names_those_that_stay(make_cluster: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    client = cluster.join(1)
    with pytest.raises(
        DeadlineError, match=r"waited 0\.3 s for worker 0 of dc2 \(pid \d+\) to leave job job"
    ):
        runner.close_job("job", timeout=0.3)
    with pytest.raises(RunFailedError, match="to leave job job"):
        client.next_segment()
    assert runner.status()["jobs"] == []


def test_aborting_from_another_thread_ends_a_segment(make_cluster: Any, everywhere: Any) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}})
    running = threading.Barrier(3)

    def work(site: int) -> None:
        with cluster.join(site) as client:
            client.next_segment()
            running.wait(5)
            with pytest.raises(RunFailedError, match="enough of that"):
                client.recv(np.zeros(1), 1 - site).wait(5)

    def run() -> None:
        with pytest.raises(RunFailedError, match="enough of that"):
            runner.run_segment("job", {"label": "x", "scheduler": "star"})

    def stop() -> None:
        running.wait(5)
        assert runner.status()["jobs"][0]["running"]
        runner.abort("job", "enough of that")

    everywhere({"runner": run, "stop": stop, 0: lambda: work(0), 1: lambda: work(1)})


@pytest.mark.parametrize("kind", ["call", "recv"])
def test_a_job_that_stops_while_a_call_begins_ends_that_call_too(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cluster = make_cluster("pair")
    cluster.runner().open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}, "scheduler": "star"})
    with cluster.join(0) as client:
        link = client._link
        check, checks = link.check, []

        def stops_after_the_first_look() -> None:
            check()
            if not checks:
                link._fail(RunFailedError("stopped just then"))
            checks.append(1)

        monkeypatch.setattr(link, "check", stops_after_the_first_look)
        with pytest.raises(RunFailedError, match="stopped just then"):
            (client.barrier() if kind == "call" else client.recv(np.zeros(1), 1)).wait(2)


def test_neighbours_use_their_direct_path_and_others_the_primary(make_cluster: Any) -> None:
    cluster = make_cluster("netstorm-9")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1), "scheduler": "netstorm"})
    job = cluster.call(lambda: next(iter(cluster.coordinator.jobs.values())))
    policy = job.machine._pending
    config = cluster.config
    for (u, v), paths in config.paths.items():
        number = policy.path(u, v)
        if v in cluster.topology.neighbours(u):
            assert paths[number] == (u, v)
        else:
            assert number == 0
    assert any(policy.hop_paths.values())  # some direct link is not the fastest path
    runner.close_job("job")


def test_views_of_a_part_of_the_network(make_cluster: Any) -> None:
    config = make_cluster("netstorm-9").config
    rates = config.topology.rates()
    whole = network_view(config, rates, tuple(range(9)))
    assert whole.n == 9 and whole.rates == rates
    linked = network_view(config, rates, (0, 1, 2))
    assert linked.names == ("dc1", "dc2", "dc3")
    assert linked.rates == {(u, v): bps for (u, v), bps in rates.items() if u < 3 and v < 3}
    # dc1 and dc9 are far apart: what the path between them carries.
    apart = network_view(config, rates, (0, 8))
    path = config.paths[0, 8][0]
    assert apart.rates[0, 1] == min(rates[hop] for hop in itertools.pairwise(path))
    # A link of rate 0 connects nothing.
    broken = {**rates, (0, 1): 0}
    assert set(network_view(config, broken, (0, 1)).rates) == {(0, 1), (1, 0)}


def test_a_site_that_waits_for_a_waiting_site_is_not_the_cause() -> None:
    chain = [Fault(0, "0 for 1", 1, frozenset({1})), Fault(1, "1 for 2", 1, frozenset({2}))]
    assert [fault.site for fault in root_faults(chain)] == [1]
    mutual = [*chain, Fault(2, "2 for 1", 1, frozenset({1}))]
    assert [fault.site for fault in root_faults(mutual)] == [1, 2]
    ring = [Fault(k, "", 1, frozenset({(k + 1) % 3})) for k in range(3)]
    assert len(root_faults(ring)) == 3


def test_silent_agents_are_lost_and_live_ones_are_not(
    make_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.streams.PING_SECONDS", 0.05)
    monkeypatch.setattr("agents.streams.SILENCE_SECONDS", 1.0)  # longer than a busy machine holds this process up
    cluster = make_cluster("pair")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": {"dc1": 1, "dc2": 1}, "scheduler": "star"})

    async def freeze() -> None:
        stream = cluster.agents[1].coordinator._stream
        stream._timer.cancel()
        stream._transport.pause_reading()

    client = cluster.join(0)
    handle = client.barrier()
    cluster.do(asyncio.sleep(1.5))
    assert not handle.done()
    cluster.do(freeze())
    with pytest.raises(
        RunFailedError, match=r"site dc2 was lost: its agent \(pid \d+\) is gone: it was silent"
    ):
        handle.wait(20)
