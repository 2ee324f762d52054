"""Links that the controller sees fail: what sites and coordinator make of them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from agents.config import AddressBook
from agents.declared_network import DeclaredNetwork
from agents.job import JobDescription
from agents.link_state import LinkFollower, NetworkNow, link_names
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import PlanError
from agents.planning.netstorm import NetStorm
from agents.replanning import Replanner
from agents.site_network import SiteNetwork
from agents.views import network_view
from agents.wire import Stamp
from controller.api import Api
from controller.fabric import Fabric
from controller.table import ModelNetwork
from tests.unit.controller.test_controller_api import World
from topologies.load import load_topology

Everywhere = Callable[[dict[Any, Callable[[], Any]]], dict[Any, Any]]
NINE = DeclaredNetwork(load_topology("netstorm-9"))


def test_ways_avoid_what_is_down_as_the_switches_rules_do() -> None:
    """Packets on model switches take exactly the way that the agents believe in."""
    rng = random.Random(3)
    topology = NINE.topology
    for _ in range(6):
        down = frozenset(rng.sample(range(len(topology.links)), rng.randint(1, 3)))
        now = NetworkNow(NINE)
        assert now.change(down) == now.cut and len(now.cut) == 2 * len(down)
        hops = now.first_hops(0)
        for (src, dst), paths in NINE.paths.items():
            for number in range(8):
                way = now.path(src, dst, number)
                if way is None:
                    continue
                assert (way[0], way[-1]) == (src, dst) and not set(pairwise(way)) & now.cut
                if now.intact(src, dst, number):
                    assert way == paths[number]
                else:
                    assert way == now.primary(src, dst)
                if src == 0 and number < len(paths):
                    assert hops[dst, number] == way[1]
        assert now.change(()) and now.path(0, 8, 7) == NINE.paths[0, 8][0]


def test_plans_do_without_the_links_that_are_down() -> None:
    now = NetworkNow(NINE)
    link = link_names(NINE)[frozenset(("dc1", "dc2"))]
    rates = NINE.topology.rates()
    for members in (tuple(range(9)), (0, 1, 2), (0, 8)):
        now.change([link])
        plan = NetStorm().plan(network_view(NINE, rates, members, now))
        for tree in plan.trees:
            used = {(v, p) for v, p in enumerate(tree.parents) if p is not None}
            if len(members) > 2:
                assert not used & {(0, 1), (1, 0)}
    now.change(k for k, ends in enumerate(NINE.topology.links) if "dc1" in ends.endpoints)
    with pytest.raises(PlanError, match="no path to dc1"):
        NetStorm().plan(network_view(NINE, rates, tuple(range(9)), now))


class Host:
    """A site's agent that only counts."""

    config = NINE

    def __init__(self) -> None:
        self.queues: dict[int, int] = {}
        self.probed: list[int] = []

    def send_probe(self, peer: int, path: int, header: Any, payload: bytes, owner: str) -> None:
        self.probed.append(peer)

    def tell_coordinator(self, kind: str, body: Any) -> int:
        return 1

    def sent_bytes(self, peer: int, path: int) -> int:
        return 0

    def queue_length(self, first_hop: int) -> int:
        return self.queues.get(first_hop, 0)


def test_a_dead_path_is_no_choice_and_its_measurements_are_forgotten() -> None:
    async def work() -> None:
        names = NINE.topology.site_names
        host = Host()
        site = SiteNetwork(JobDescription("j", "j#1", tuple(range(9)), names, (1,) * 9, 9.0), 0, host)
        site.configure({"estimator": "unbiased", "probe_idle_s": 0}, "random", seed=1)
        own = NINE.paths[0, 1].index((0, 1))
        assert {site.choose(1, own) for _ in range(50)} == set(range(len(NINE.paths[0, 1])))
        for path in range(2):
            site.measure(1, path, Stamp(0, False), 10_000_000)
        begun = len(site._estimators)
        site.links_changed([link_names(NINE)[frozenset(("dc1", "dc2"))]])
        # The hop's own path is dead: the others stay a choice, and its number goes along the primary.
        assert {site.choose(1, own) for _ in range(50)} == set(range(len(NINE.paths[0, 1])))
        other = next(k for k in range(len(NINE.paths[0, 2])) if NINE.paths[0, 2][k] == (0, 2))
        over = [k for k, path in enumerate(NINE.paths[0, 2]) if (0, 1) in pairwise(path)]
        assert over and not {site.choose(2, other) for _ in range(50)} & set(over)
        assert len(site._estimators) == begun - 1
        site.close()

    asyncio.run(work())


def test_what_was_measured_on_a_link_counts_no_more_when_it_has_failed() -> None:
    replanner = Replanner(
        AwarenessOptions(estimator="unbiased"),
        AuxiliaryOptions(),
        network=NINE,
        members=tuple(range(9)),
        declared=NINE.topology.rates(),
        view=lambda rates: network_view(NINE, rates, tuple(range(9)), replanner.now),
    )
    direct = NINE.paths[0, 1].index((0, 1))
    replanner.reported(1, [[0, direct, 7e6]], 0.0)
    assert replanner.rates(0.0)[0, 1] == 7e6
    link = link_names(NINE)[frozenset(("dc1", "dc2"))]
    replanner.links_changed([link])
    assert replanner.rates(0.0)[0, 1] == replanner.rates(0.0)[1, 0] == 0
    replanner.reported(1, [[0, direct, 9e6]], 1.0)  # it went another way
    assert (0, 1) not in replanner.matrix.estimates
    assert replanner.status(1.0)["links_down"] == ["dc1-dc2"]
    replanner.links_changed([])
    assert replanner.rates(1.0)[0, 1] == NINE.topology.rates()[0, 1]


@pytest.fixture
def world() -> Iterator[World]:
    topology = load_topology("triangle")
    fabric = Fabric(topology)
    api = Api(fabric, "127.0.0.1", 0, CollectorRegistry())
    api.start()
    made = World(fabric, ModelNetwork(topology), api)
    for number in (1, 2, 3):
        made.connect(number)
    yield made
    api.close()


def until(condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


def test_a_follower_hears_of_each_change_and_of_another_controller(world: World) -> None:
    heard: list[frozenset[int]] = []

    async def work() -> None:
        declared = DeclaredNetwork(load_topology("triangle"))
        follower = LinkFollower(("127.0.0.1", world.api.port), link_names(declared), heard.append)
        follower.start()

        async def hear(count: int) -> None:
            async with asyncio.timeout(10):
                while len(heard) < count:
                    await asyncio.sleep(0.01)

        await hear(1)
        for k, up in enumerate((False, True)):
            world.port(1, 2, up)
            world.settle()
            await hear(k + 2)
        await follower.close()

    asyncio.run(work())
    assert heard == [frozenset(), frozenset({link_names(DeclaredNetwork(load_topology("triangle")))[
        frozenset(("dc1", "dc2"))]}), frozenset()]  # fmt: skip


@pytest.mark.timeout(90)
def test_a_link_that_fails_in_the_middle_of_a_segment_is_planned_around(
    make_cluster: Any, everywhere: Everywhere, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = AddressBook.__init__

    def with_controller(self: AddressBook, *arguments: Any, **more: Any) -> None:
        told(self, *arguments, **more)
        object.__setattr__(self, "controller", ("127.0.0.1", world.api.port))

    monkeypatch.setattr(AddressBook, "__init__", with_controller)
    cluster = make_cluster("triangle")
    runner = cluster.runner()
    runner.open_job({"job": "job", "sites": dict.fromkeys(cluster.names, 1), "chunk_elements": 500})
    over = threading.Event()

    def work(site: int) -> None:
        with cluster.join(site) as client:
            while client.next_segment() is not None:
                array = np.ones(3_000, "float32")
                while array[0]:
                    array[:] = 0 if over.is_set() and client.rank == 0 else 1
                    client.allreduce(array).wait()
                    array[:] = array[0] == 3  # all go on, or all end

    def conduct() -> dict[str, Any]:
        until(lambda: cluster.coordinator.jobs, "the job")
        segment = {"label": "a", "scheduler": "netstorm"}
        results: list[Any] = []
        running = threading.Thread(
            target=lambda: results.append(runner.run_segment("job", segment, timeout=60)), daemon=True
        )
        running.start()
        (job,) = cluster.coordinator.jobs.values()
        until(lambda: job.machine.next_seq > 5, "the first collectives")
        first = job.machine.policy
        world.port(1, 2, False)
        world.settle()
        until(lambda: job.machine.version > first.version, "a new policy")
        without = job.machine.policy
        links = {(v, p) for tree in without.plan.trees for v, p in enumerate(tree.parents) if p is not None}
        assert not links & {(0, 1), (1, 0)}
        assert runner.status()["links_down"] == ["dc1-dc2"]
        until(lambda: all(agent.now.down for agent in cluster.agents), "the agents to know")
        world.port(1, 2, True)
        world.settle()
        until(lambda: job.machine.version > without.version, "the policy with all links")
        assert job.machine.policy.plan.trees == first.plan.trees
        over.set()
        running.join(60)
        runner.close_job("job")
        return results[0]

    jobs: dict[Any, Callable[[], Any]] = {k: lambda k=k: work(k) for k in range(3)}
    done = everywhere({"runner": conduct} | jobs)["runner"]
    assert [entry["reason"] for entry in done["policies"]] == ["start", "links", "links"]
    assert done["network"]["links_down"] == []
    control = done["control"]
    assert control["from_sites_bytes"]["acks"] > 0 < control["to_sites_bytes"]["policies"]
    assert control["to_sites_bytes"]["routes"] > 0 < control["from_sites_bytes"]["barrier"]
