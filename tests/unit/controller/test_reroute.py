"""Links that fail and return, proved on model switches which carry commands out one by one, in any order
between them: nothing ever circles, and what can arrive does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fabric import Fabric
from controller.reroute import DOWN_AFTER_S, UP_AFTER_S, LinkWatch
from controller.rules import Kind, RuleId, plan_rules
from controller.session import Add, Barrier, Command, Delete, ReadPorts, ReadRules
from controller.steering import DRAIN_S, HOLD_S, STEP_S, Orders
from controller.table import ModelNetwork
from tests.unit.controller.test_rules import ATLAS, topology_of
from topologies.addressing import HOST_PORT, dpid, wan_port
from topologies.load import load_topology
from topologies.model import Topology
from topologies.paths import Path, hops_of, is_intact, path_sets, primaries

TRIANGLE = load_topology("triangle")


class Lab:
    """A fabric and the model of its network, with a clock of its own.

    Every switch works through its commands in order; which switch is next is drawn. After each rule that
    changes, packets of the rule's pair are followed.
    """

    def __init__(self, topology: Topology, seed: int = 0) -> None:
        self.topology = topology
        self.network = ModelNetwork(topology)
        self.down: frozenset[int] = frozenset()
        self.now_s = 100.0
        self.changes = 0
        self.deaf: set[int] = set()
        self._random = random.Random(seed)
        self._before: dict[tuple[int, int], Path | None] = {}
        self.start_controller()

    def start_controller(self) -> None:
        self.fabric = Fabric(self.topology)
        self._before = dict(self.fabric.steering.leading)
        self.inbox: dict[int, deque[Command]] = {number: deque() for number in self.fabric.sessions}

    def connect(self, numbers: Iterable[int] | None = None) -> None:
        for number in numbers if numbers is not None else self.fabric.sessions:
            self.push(self.fabric.on_connect(number, self.now_s))
        self.work()

    def push(self, orders: Orders) -> None:
        for number, commands in orders:
            self.inbox[number] += commands

    def work(self) -> None:
        """Let the switches do all that they have been told."""
        while ready := [number for number, queue in self.inbox.items() if queue and number not in self.deaf]:
            number = self._random.choice(ready)
            command = self.inbox[number].popleft()
            switch = self.network.switches[number]
            switch.execute([command])
            match command:
                case ReadRules():
                    self.push(self.fabric.on_rules(number, switch.entries, self.now_s))
                case ReadPorts():
                    self.push(self.fabric.on_ports(number, self.ports(number), self.now_s))
                case Barrier():
                    self.push(self.fabric.on_barrier(number, self.now_s))
                case Add(rule) | Delete(rule):
                    self.changes += 1
                    self.follow(rule.cookie)

    def follow(self, cookie: int) -> None:
        """Packets of the pair whose rule has just changed. The model raises when one circles."""
        name = RuleId.of(cookie)
        if name is None or name.kind not in (Kind.PATH, Kind.PRIMARY):
            return
        pair, cut = (name.src, name.dst), hops_of(self.topology, self.down)
        declared = self.fabric.paths[pair]
        steering = self.fabric.steering
        whole = all(
            path is not None and is_intact(path, cut) for path in (self._before[pair], steering.leading[pair])
        )
        for number in numbers_of(declared):
            journey = self.network.send(*pair, path=number)
            assert journey.delivered_to in (pair[1], None)
            if steering.moving and whole and (number >= len(declared) or is_intact(declared[number], cut)):
                assert journey.delivered_to == pair[1], f"number {number} of {pair} is lost on the way"

    def ports(self, number: int) -> dict[int, bool]:
        ports = {HOST_PORT: True}
        for i, link in enumerate(self.topology.links):
            u, v = (self.topology.index(name) for name in link.endpoints)
            for a, b in ((u, v), (v, u)):
                if dpid(a) == number:
                    ports[wan_port(self.topology, a, b)] = i not in self.down
        return ports

    def cut(self, links: Iterable[int]) -> None:
        """Exactly these links are down from now on, and the switches tell about their ports."""
        before, self.down = {n: self.ports(n) for n in self.inbox}, frozenset(links)
        self.network.cut(self.down)
        self._before = dict(self.fabric.steering.leading)
        for number, ports in before.items():
            for port, up in self.ports(number).items():
                if up != ports[port]:
                    self.push(self.fabric.on_port(number, port, up, self.now_s))

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.05
            self.push(self.fabric.on_time(self.now_s))
            self.work()

    def settle(self) -> None:
        self.pass_time(UP_AFTER_S + DRAIN_S + 0.2)
        assert not self.fabric.steering.pending

    def prove(self) -> None:
        """All is as it has to be while exactly `down` is down."""
        plan = plan_rules(self.topology, self.fabric.paths, self.down)
        for number, switch in self.network.switches.items():
            assert switch.rules == set(plan[number])
            assert self.fabric.sessions[number].in_sync
        cut = hops_of(self.topology, self.down)
        left = networkx.Graph(
            [link.endpoints for i, link in enumerate(self.topology.links) if i not in self.down]
        )
        left.add_nodes_from(self.topology.site_names)
        names = self.topology.site_names
        for (src, dst), declared in self.fabric.paths.items():
            reachable = networkx.has_path(left, names[src], names[dst])
            standing = next((path for path in declared if is_intact(path, cut)), None)
            for number in numbers_of(declared):
                dropped = self.dropped(src)
                journey = self.network.send(src, dst, path=number, cls=number)
                assert journey.delivered_to == (dst if reachable else None)
                assert is_intact(journey.sites, cut) and len(set(journey.sites)) == len(journey.sites)
                assert self.dropped(src) == dropped + (not reachable), "what goes nowhere is counted"
                if number < len(declared) and is_intact(declared[number], cut):
                    assert journey.sites == declared[number], "a path that is whole is what it was"
                elif standing is not None:
                    assert journey.sites == standing

    def dropped(self, site: int) -> int:
        entries = self.network.switches[dpid(site)].entries
        return next(e.packets for e in entries if (e.rule.table, e.rule.priority) == (1, 0))


def numbers_of(declared: tuple[Path, ...]) -> list[int]:
    """Path numbers to try: the pair's own, and one that it does not have."""
    return sorted({*range(len(declared)), 7})


def cut_and_mend(topology: Topology, cuts: Iterable[frozenset[int]], seed: int = 0) -> None:
    lab = Lab(topology, seed)
    lab.connect()
    lab.settle()
    lab.prove()
    for down in cuts:
        lab.cut(down)
        lab.settle()
        lab.prove()
        lab.cut(())
        lab.settle()
        lab.prove()
        assert lab.fabric.steering.moved == []


@pytest.mark.parametrize(("size", "every"), [(2, 1), (3, 1), (4, 1), (5, 4)])
def test_every_single_cut_of_small_networks(size: int, every: int) -> None:
    graphs = [graph for graph in ATLAS if graph.number_of_nodes() == size]
    for k, graph in enumerate(graphs[::every]):
        topology = topology_of(graph)
        cut_and_mend(topology, [frozenset({i}) for i in range(len(topology.links))], seed=k)


def test_two_cuts_at_once_of_larger_networks() -> None:
    draw = random.Random(1)
    for graph in [graph for graph in ATLAS if graph.number_of_nodes() >= 6][100::400]:
        topology = topology_of(graph)
        links = range(len(topology.links))
        cut_and_mend(topology, [frozenset(draw.sample(links, 2)) for _ in range(2)], seed=draw.random())


def test_cuts_of_netstorm_9() -> None:
    cut_and_mend(load_topology("netstorm-9"), [frozenset({0}), frozenset({7, 12})])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_links_that_change_while_rules_do(data: st.DataObject) -> None:
    """Cuts and returns come at any moment, also between the steps of a transition."""
    size = data.draw(st.integers(3, 8))
    graph = networkx.Graph([(data.draw(st.integers(0, v - 1)), v) for v in range(1, size)])
    pairs = [(u, v) for u in range(size) for v in range(u)]
    graph.add_edges_from(data.draw(st.lists(st.sampled_from(pairs), max_size=2 * size)))
    topology = topology_of(graph)
    lab = Lab(topology, data.draw(st.integers(0, 99)))
    lab.connect()
    some = st.frozensets(st.integers(0, len(topology.links) - 1), max_size=3)
    for _ in range(data.draw(st.integers(1, 4))):
        lab.cut(data.draw(some))
        lab.pass_time(data.draw(st.sampled_from([0.05, 0.1, 0.6, 1.0, 3.0])))
    lab.settle()
    lab.prove()


def test_a_move_takes_the_first_whole_path_and_else_a_fresh_one() -> None:
    # A ring of four with one diagonal; its links are 0-1, 0-3, 0-2, 1-2, 2-3.
    graph = networkx.empty_graph(4)
    graph.add_edges_from([(0, 1), (0, 3), (0, 2), (1, 2), (2, 3)])
    topology = topology_of(graph, [90, 90, 50, 50, 10, 10, 90, 90, 50, 50])
    paths = path_sets(topology)

    def primary(src: int, dst: int, *down: int) -> Path | None:
        return primaries(topology, paths, frozenset(down))[src, dst]

    assert paths[0, 2] == ((0, 1, 2), (0, 3, 2), (0, 2))
    assert [primary(0, 2), primary(0, 2, 0), primary(0, 2, 0, 1)] == list(paths[0, 2])
    assert paths[0, 1] == ((0, 1), (0, 3, 2, 1))
    assert primary(0, 1, 0) == (0, 3, 2, 1)
    assert primary(0, 1, 0, 1) == (0, 2, 1), "none of the set is whole, and there is a way"
    assert primary(0, 1, 0, 1, 2) is None


def test_rules_of_a_cut_path_go_from_its_beginning() -> None:
    """From its end they would leave packets of its number circling: back to 2 by path 1, to 1 by path 0."""
    graph = networkx.empty_graph(5)
    graph.add_edges_from([(0, 2), (2, 3), (3, 1), (1, 4), (0, 1), (1, 2), (2, 4)])
    fast, slow = [1000, 1000], [10, 10]
    topology = topology_of(
        graph,
        [rate for u, v in graph.edges for rate in (slow if {u, v} in ({0, 1}, {1, 2}, {2, 4}) else fast)],
    )
    assert path_sets(topology)[0, 4] == ((0, 2, 3, 1, 4), (0, 1, 2, 4))
    cut_and_mend(topology, [frozenset({list(graph.edges).index((2, 4))})])


def test_the_same_news_twice_changes_nothing() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.cut({0})
    lab.settle()
    done, version = lab.changes, lab.fabric.steering.version
    for number in lab.inbox:
        lab.push(lab.fabric.on_ports(number, lab.ports(number), lab.now_s))
    lab.settle()
    assert (lab.changes, lab.fabric.steering.version) == (done, version)


def test_a_move_begins_soon_and_a_return_waits() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.cut({0})
    lab.pass_time(DOWN_AFTER_S + 0.05)
    assert lab.network.send(0, 1).sites == (0, 2, 1)
    lab.cut(())
    lab.pass_time(UP_AFTER_S - 0.1)
    assert lab.network.send(0, 1).sites == (0, 2, 1)
    lab.pass_time(0.2)
    assert lab.network.send(0, 1).sites == (0, 1)


def test_a_link_that_flaps_stays_out_of_use() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.cut({0})
    lab.pass_time(0.2)
    version = lab.fabric.steering.version
    for _ in range(10):
        lab.cut(())
        lab.pass_time(0.3)
        lab.cut({0})
        lab.pass_time(0.3)
    assert lab.fabric.steering.version == version == 1
    assert lab.network.send(0, 1).sites == (0, 2, 1)


def test_the_old_way_stands_until_its_packets_have_arrived() -> None:
    """Packets that are on the detour when the link returns find their rules until they are through."""
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.cut({0})
    lab.settle()
    detour = next(
        r
        for r in plan_rules(TRIANGLE, lab.fabric.paths, frozenset({0}))[3]
        if r.cookie == RuleId(Kind.PRIMARY, 0, 0, 1).cookie
    )
    lab.cut(())
    lab.pass_time(UP_AFTER_S + DRAIN_S / 2)
    assert lab.network.send(0, 1).sites == (0, 1)
    assert detour in lab.network.switches[3].rules
    lab.pass_time(DRAIN_S)
    assert detour not in lab.network.switches[3].rules


def test_a_controller_that_returns_while_a_link_is_down_touches_nothing() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.cut({0})
    lab.settle()
    done = lab.changes
    lab.start_controller()
    lab.connect([3])  # its rules for the detour are right, though its own links are up
    lab.pass_time(1.0)
    lab.connect([1, 2])
    lab.settle()
    assert lab.changes == done
    assert lab.fabric.health()["links_down"] == [["dc1", "dc2"]] and lab.fabric.health()["ready"]
    lab.prove()


def test_a_switch_that_does_not_come_is_not_waited_for_forever() -> None:
    lab = Lab(TRIANGLE)
    lab.connect([1, 2])
    lab.pass_time(HOLD_S - 0.2)
    assert lab.changes == 0
    lab.pass_time(0.4)
    assert {n for n, s in lab.fabric.sessions.items() if s.in_sync} == {1, 2}
    lab.connect([3])
    assert lab.fabric.health()["ready"]


def test_a_switch_that_does_not_confirm_is_said_so_and_not_waited_for() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.deaf = {3}
    lab.cut({0})
    lab.pass_time(DOWN_AFTER_S + STEP_S + 0.2)
    assert not lab.fabric.steering.moving, "it is waited for once, not at every step"
    assert lab.fabric.sessions[3].last_error == f"did not confirm new routes within {STEP_S:g} s"
    assert not lab.fabric.sessions[3].in_sync
    lab.deaf = set()
    lab.work()
    lab.settle()
    lab.prove()


def test_a_switch_that_leaves_in_the_middle_gets_the_new_plan_when_it_is_back() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.push(lab.fabric.on_disconnect(3, lab.now_s))
    lab.cut({0})
    lab.settle()
    assert lab.network.send(0, 1).sites == (0, 2)
    lab.connect([3])
    lab.settle()
    lab.prove()


def test_what_a_reading_shows_of_before_an_update_is_not_put_right() -> None:
    lab = Lab(TRIANGLE)
    lab.connect()
    lab.push(lab.fabric.poll(lab.now_s))  # readings are on their way ...
    for queue in lab.inbox.values():
        assert list(queue) == [ReadRules()]
        queue.clear()
    old = {number: switch.entries for number, switch in lab.network.switches.items()}
    lab.cut({0})
    lab.now_s += DOWN_AFTER_S
    lab.push(lab.fabric.on_time(lab.now_s))  # ... when the rules change
    for number, entries in old.items():
        lab.push(lab.fabric.on_rules(number, entries, lab.now_s))
    lab.settle()
    lab.prove()
    assert all(session.repairs == 0 for session in lab.fabric.sessions.values())


def test_the_watch_knows_ports_of_links_only() -> None:
    watch = LinkWatch(TRIANGLE)
    watch.report(1, HOST_PORT, False, 0)
    watch.report(1, 9, False, 0)
    watch.report(77, 2, False, 0)
    assert not watch.pending
    watch.report(1, 2, False, 0)
    assert watch.pending and watch.settle(DOWN_AFTER_S / 2) is None
    watch.report(1, 2, True, 0.03)
    assert not watch.pending
    watch.report_all(1, {HOST_PORT: True, 2: True}, 1)  # port 3 is gone
    assert watch.settle(1 + DOWN_AFTER_S) == 1
    assert watch.down == {2}
    watch.report(1, 3, True, 2)
    watch.report(3, 3, False, 2)  # the other end is still down
    assert not watch.pending
