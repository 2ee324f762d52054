"""Orders of coflows on real connections: levels become classes and queues, the last map outlives its maker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from agents.coflow.base import CoflowError
from agents.coflow.coordinator import JobNeeds
from agents.coflow_control import CoflowProcess
from agents.lanes import LaneId
from agents.metrics.agent import AgentCollector
from agents.placement import Placement
from tests.unit.agents.conftest import Cluster, everywhere
from tests.unit.agents.test_transport import Pair, run, until
from topologies.errors import UsageError


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return value


def needs(name: str, load: float, iterations: int = 9) -> JobNeeds:
    return JobNeeds(name, iterations, {0: load, 1: load}, 800_000.0, 2)


def metrics(cluster: Cluster, site: int) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(AgentCollector(cluster.agents[site]))
    text = cluster.call(lambda: generate_latest(registry)).decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def allreduce(cluster: Cluster, clients: dict[tuple[str, int], Any]) -> None:
    """Every job synchronises 100,000 elements, all at once; the sums must be right."""

    def one(key: tuple[str, int]) -> Callable[[], Any]:
        def work() -> None:
            values = np.full(100_000, key[1] + 1, np.float32)
            clients[key].allreduce(values).wait()
            assert (values == 3).all()

        return work

    everywhere({key: one(key) for key in clients})


def test_levels_are_enforced_and_outlive_their_coordinator(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster("pair")
    runner = cluster.runner()
    with CoflowProcess("127.0.0.1", 2, tmp_path / "coflow.log") as process, process.client() as coflows:
        runner.follow_coflow(process.address)
        for job in ("first", "second"):
            spec = {"job": job, "sites": {"dc1": 1, "dc2": 1}, "scheduler": "star", "chunk_elements": 10_000}
            runner.open_job(spec)
        clients = {(job, k): cluster.join(k, job) for job in ("first", "second") for k in range(2)}
        coflows.policy("beamer", "both")
        coflows.stage("A", [needs("first", 5.0)])
        coflows.stage("B", [needs("second", 1.0)])
        agents = cluster.agents
        eventually(lambda: all(a.coflows.map and len(a.coflows.map.places) == 2 for a in agents))
        allreduce(cluster, clients)
        done = eventually(lambda: coflows.coflows())
        while len(done) < 2:
            done += eventually(lambda: coflows.coflows())
        assert {(c.job, c.seq) for c in done} == {("first", 0), ("second", 0)}
        # Ten chunks up at one site, ten down at the other; each has waited for some time.
        assert all(c.chunks == 20 and c.gate_wait_s > 0 and c.finish > c.arrival for c in done)
        sent = {lane.id: lane.counters.bytes for lane in agents[1].transport.lanes()}
        assert set(sent) == {LaneId(0, 0, 7), LaneId(0, 0, 6)} and min(sent.values()) > 400_000

        shown = metrics(cluster, 1)
        assert shown["stormbed_agent_coflow_connected"] == 1 and shown["stormbed_agent_gated_chunks_total"] == 20
        level = {job: shown[f'stormbed_agent_coflow_level{{run="{job}"}}'] for job in ("first", "second")}
        assert level == {"first": 6, "second": 7}
        assert shown["stormbed_agent_gate_wait_seconds_total"] > 0

        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not any(a.coflows.connected for a in agents))
        allreduce(cluster, clients)
        assert all(a.coflows.map is not None and a.coflows.map.places["second"].level == 7 for a in agents)
        assert {lane.id for lane in agents[1].transport.lanes()} == set(sent), "the same classes as before"
    runner.follow_coflow(None)
    eventually(lambda: all(a.coflows.map is None for a in agents))
    allreduce(cluster, clients)
    assert LaneId(0, 0, 0) in {lane.id for lane in agents[1].transport.lanes()}
    for client in clients.values():
        client.close()


def test_the_end_of_the_runner_takes_the_order_away(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster("pair")
    runner, other = cluster.runner(), cluster.runner()
    with CoflowProcess("127.0.0.1", 2, tmp_path / "coflow.log") as process:
        runner.follow_coflow(process.address)
        eventually(lambda: all(a.coflows.map is not None for a in cluster.agents))
        with pytest.raises(UsageError, match="another runner's coflow coordinator"):
            other.follow_coflow(("127.0.0.1", 1))
        runner.close()
        eventually(lambda: all(a.coflows.map is None for a in cluster.agents))
        other.follow_coflow(None)


def test_the_coordinator_names_what_it_refuses(tmp_path: Path) -> None:
    with CoflowProcess("127.0.0.1", 2, tmp_path / "coflow.log") as process, process.client() as coflows:
        with pytest.raises(UsageError, match="unknown ordering 'sincronai'"):
            coflows.policy("sincronai", "both")
        with pytest.raises(UsageError, match="enforcement 'hope'"):
            coflows.policy("fair", "hope")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="stage s has no jobs"):
            coflows.stage("s", [])
        coflows.stage("s", [needs("a", 1.0)])
        with pytest.raises((UsageError, CoflowError), match="stage s is under way"):
            coflows.policy("beamer", "gate")


def lives(pid: int) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_runner_leaves_no_coordinator(tmp_path: Path) -> None:
    runner = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import pathlib, signal, sys\n"
            "from agents.coflow_control import CoflowProcess\n"
            "process = CoflowProcess('127.0.0.1', 2, pathlib.Path(sys.argv[1]))\n"
            "print(process.pid, flush=True)\n"
            "signal.pause()\n",
            str(tmp_path / "coflow.log"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        assert lives(pid)
        runner.kill()
    eventually(lambda: not lives(pid))


def test_an_interrupt_while_the_coordinator_starts_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def interrupted(self: CoflowProcess, log: Path) -> int:
        started.append(self.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(CoflowProcess, "_read_port", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CoflowProcess("127.0.0.1", 2, tmp_path / "coflow.log")
    assert started
    assert not lives(started[0])


def frames(pair: Pair) -> list[str]:
    return [frame[2]["n"] for frame in pair.sinks[1].frames]


def test_a_raised_jobs_waiting_frames_go_next_and_in_its_new_class() -> None:
    block = np.zeros(1_000_000, np.uint8)
    places = {"low": Placement(0, 0, (0.0, 1.0)), "high": Placement(0, 0, (0.0, 0.0))}

    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        sender.send(1, 0, {"n": "opens"})
        await sink.until(lambda: len(sink.frames) == 1)
        pair.ends[1].hold(True)
        for number in range(30):
            for owner in ("high", "low"):
                sender.send(1, 0, {"n": f"{owner} {number}"}, block, owner=owner, placed=places[owner])
        await until(lambda: sender._lane(LaneId(1, 0, 0))._armed)
        places["low"] = Placement(7, 0, (-7.0, 0.0))
        sender.arrange(lambda owner: places[owner], gated=False, notsent_bytes=64 * 1024)
        moved = sender._lane(LaneId(1, 0, 7))
        assert moved.waiting >= 25 and sender._lane(LaneId(1, 0, 0)).waiting < 30
        await until(lambda: moved._socket is not None)
        assert pair.socket(0, 7).getsockopt(0, 1) == 7 << 2  # IPPROTO_IP, IP_TOS
        pair.ends[1].hold(False)
        await sink.until(lambda: len(sink.frames) == 61, 30.0)
        assert sorted(frames(pair)[1:]) == sorted(f"{o} {k}" for o in ("high", "low") for k in range(30))

    run(work)


def test_a_gate_lets_the_better_placed_lane_empty_first() -> None:
    block = np.zeros(200_000, np.uint8)

    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        high, low = Placement(7, 0, (-7.0, 0.0)), Placement(6, 0, (-6.0, 1.0))
        sender.arrange(lambda owner: high, gated=True, notsent_bytes=64 * 1024)
        for placed in (high, low):
            sender.send(1, 0, {"n": "opens"}, placed=placed)
        await sink.until(lambda: len(sink.frames) == 2)
        for number in range(40):
            sender.send(1, 0, {"n": f"low {number}"}, block, placed=low)
        for number in range(40):
            sender.send(1, 0, {"n": f"high {number}"}, block, placed=high)
        await sink.until(lambda: len(sink.frames) == 82, 30.0)
        names = frames(pair)[2:]
        last_high = max(k for k, name in enumerate(names) if name.startswith("high"))
        before = sum(name.startswith("low") for name in names[:last_high])
        # Without a gate all 40 do. A machine too busy to run this loop for 50 ms lets a turn pass.
        assert before <= 15, f"{before} frames of the lower lane passed the gate"

    run(work)


def test_a_killed_jobs_frames_are_flushed_and_others_are_not() -> None:
    block = np.zeros(1_000_000, np.uint8)
    place = {"killed": Placement(7, 0, (-7.0, 0.0)), "lives": Placement(6, 0, (-6.0, 1.0))}

    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        sender.arrange(lambda owner: place[owner], gated=True, notsent_bytes=64 * 1024)
        pair.ends[1].hold(True)
        for owner in place:
            for number in range(30):
                sender.send(1, 0, {"n": f"{owner} {number}"}, block, owner=owner, placed=place[owner])
        await until(lambda: sender._lane(LaneId(1, 0, 7))._armed)
        sender.drop("killed")
        assert sender._lane(LaneId(1, 0, 7)).waiting == 0
        pair.ends[1].hold(False)
        await sink.until(lambda: sum(n.startswith("lives") for n in frames(pair)) == 30, 30.0)
        assert sum(n.startswith("killed") for n in frames(pair)) < 20

    run(work)


def test_equals_that_share_have_connections_of_their_own() -> None:
    async def work(pair: Pair) -> None:
        sender, sink = pair.ends[0], pair.sinks[1]
        for stream in (1, 2):
            sender.send(1, 0, {"n": f"s{stream}"}, placed=Placement(0, stream, (0.0, 0.0)))
        await sink.until(lambda: len(sink.frames) == 2)
        assert {lane.id for lane in sender.lanes()} == {LaneId(1, 0, 0, 1), LaneId(1, 0, 0, 2)}
        ports = {lane._socket.getsockname()[1] for lane in sender.lanes() if lane._socket}
        assert len(ports) == 2

    run(work)


def test_nothing_changes_while_no_order_is_in_force(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster("pair")
    agent = cluster.agents[0]
    assert agent.coflows.placement("any#1") is None and not agent.coflows.connected

    async def unchanged() -> bool:
        await asyncio.sleep(0)
        return agent.transport._uplinks is None

    assert cluster.do(unchanged())
