"""Cut links in the simulated world: who moves when, what is sent again, when a connection is given up."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from agents.sync.spec import allreduce
from controller.reroute import DOWN_AFTER_S, UP_AFTER_S
from testbed.experiments.manifest import read_manifest
from testbed.experiments.spec import experiment_from_text
from testbed.report.measurements import read_run
from testbed.simulation.clock import SECOND
from testbed.simulation.retransmission import Retransmission
from testbed.simulation.run import run_experiment
from testbed.simulation.world import World, WorldOptions
from tests.unit.simulation.conftest import Build
from topologies.errors import RunFailedError, UsageError
from topologies.load import load_topology

MS = 1_000_000
TRIANGLE = {(0, 1): 10, (0, 2): 10, (1, 2): 10}
MB = 1_250_000  # a second at 10 Mbit/s


class Sending:
    """A triangle of 10 Mbit/s and 10 ms, and when messages from dc1 to dc2 have arrived, in ms."""

    def __init__(self, topology_of: Build, **options: int) -> None:
        self.world = World(topology_of(TRIANGLE, "10ms"), options=WorldOptions(**options), whole=True)  # type: ignore[arg-type]
        self.clock = self.world.clock
        self.arrived: list[float] = []
        self.lost: list[tuple[float, str]] = []
        self.index = {(link.src, link.dst): link.index for link in self.world.topology.directed}
        self.world.lanes._lost = lambda src, dst, why: self.lost.append((self.now, why))

    @property
    def now(self) -> float:
        return self.clock.now_ns / MS

    def send(self, nbytes: int = MB, src: int = 0, dst: int = 1) -> None:
        lane = self.world.lane(src, dst, 0)
        self.world.lanes.send(lane, nbytes, lambda: self.arrived.append(self.now))

    def at(self, ms: float, down: object = (), blackhole: object = (), on: bool = True) -> None:
        """Cut (or mend) these directions then."""
        changes = ({self.index[hop]: on for hop in hops} for hops in (down, blackhole))  # type: ignore[attr-defined]
        self.clock.at(round(ms * MS), lambda: self.world.cut(*changes))


BOTH = ((0, 1), (1, 0))


def test_a_cut_cable_costs_a_detection_and_a_retransmission_timer(topology_of: Build) -> None:
    """At 300 ms 7 Mbit are left and 0.1 on the wire. The switches lead around from 370 ms on, TCP tries at 520."""
    it = Sending(topology_of)
    it.send()
    it.at(300, down=BOTH)
    it.clock.run()
    assert it.arrived == [pytest.approx(520 + 710 + 20, abs=0.01)]
    assert it.world.lanes.rerouting is not None
    assert it.world.lanes.rerouting.path(0, 1, 0) == (0, 2, 1)
    crossed = it.world.network.carried_bits
    assert crossed[it.index[0, 1]] == pytest.approx(3e6)
    assert crossed[it.index[0, 2]] == crossed[it.index[2, 1]] == pytest.approx(7.1e6)


def test_slow_switches_cost_the_next_timer(topology_of: Build) -> None:
    """Rules that stand only at 550 ms miss the try at 520; the next one is twice as far."""
    it = Sending(topology_of, reroute_ns=200 * MS)
    it.send()
    it.at(300, down=BOTH)
    it.clock.run()
    assert it.arrived == [pytest.approx(300 + 220 + 440 + 710 + 20, abs=0.01)]


def test_a_blackhole_moves_nothing_and_ends_with_a_retransmission(topology_of: Build) -> None:
    """Tries at 520, 960, 1840, 3600 ms: the first after its end at 2300 gets through."""
    it = Sending(topology_of)
    it.send()
    it.at(300, blackhole=[(0, 1)])
    it.at(2300, blackhole=[(0, 1)], on=False)
    it.clock.run()
    assert it.arrived == [pytest.approx(3600 + 710 + 10)]
    assert it.world.lanes.rerouting is not None and it.world.lanes.rerouting.reroutes == 0


def test_acknowledgements_that_vanish_stop_a_sender_too(topology_of: Build) -> None:
    it = Sending(topology_of)
    it.send()
    it.at(300, blackhole=[(1, 0)])
    it.at(500, blackhole=[(1, 0)], on=False)
    it.clock.run()
    assert it.arrived == [pytest.approx(520 + 710 + 10)]


def test_what_was_only_on_the_wire_is_sent_again(topology_of: Build) -> None:
    """All of it has left at 1000 ms, the last bits are under way at 1005; a path's worth of bits takes 10 ms."""
    it = Sending(topology_of)
    it.send()
    it.at(1005, blackhole=[(0, 1)])
    it.at(1006, blackhole=[(0, 1)], on=False)
    it.clock.run()
    assert it.arrived == [pytest.approx(1005 + 220 + 10 + 10)]
    assert it.lost == []


def test_an_idle_connection_goes_on_at_once(topology_of: Build) -> None:
    it = Sending(topology_of)
    it.send()
    it.at(1500, blackhole=[(0, 1)])
    it.at(1900, blackhole=[(0, 1)], on=False)
    it.clock.at(2000 * MS, it.send)
    it.clock.run()
    assert it.arrived == [1010, 3010]


def test_messages_keep_their_order_over_a_cut(topology_of: Build) -> None:
    it = Sending(topology_of)
    seen: list[int] = []
    lane = it.world.lane(0, 1, 0)
    for k in range(50):
        it.world.lanes.send(lane, 50_000, lambda k=k: seen.append(k))  # type: ignore[misc]
    it.at(301, down=BOTH)
    it.at(900, down=BOTH, on=False)
    it.at(1700, blackhole=[(0, 1)])
    it.at(1900, blackhole=[(0, 1)], on=False)
    it.clock.run()
    assert seen == list(range(50))


def test_the_way_back_is_taken_half_a_second_after_the_cable_is_mended(topology_of: Build) -> None:
    it = Sending(topology_of)
    rerouting_moves: list[float] = []
    it.at(100, down=BOTH)
    it.at(1000, down=BOTH, on=False)
    it.clock.run(until=lambda: it.world.lanes.rerouting is not None)
    rerouting = it.world.lanes.rerouting
    assert rerouting is not None
    moved = rerouting._moved
    rerouting._moved = lambda: (rerouting_moves.append(it.now), moved())  # type: ignore[func-returns-value]
    it.clock.run()
    delays = [100 + 1e3 * DOWN_AFTER_S + 20, 1000 + 1e3 * UP_AFTER_S + 20]
    assert rerouting_moves == [pytest.approx(ms, abs=0.01) for ms in delays]
    assert rerouting.path(0, 1, 0) == (0, 1)


def test_a_cable_that_flaps_moves_nothing(topology_of: Build) -> None:
    it = Sending(topology_of)
    it.at(100, down=BOTH)
    it.at(130, down=BOTH, on=False)
    it.send()
    it.clock.run()
    assert it.world.lanes.rerouting is not None and it.world.lanes.rerouting.reroutes == 0
    assert it.arrived == [pytest.approx(320 + 910 + 10)]


def test_the_timers_are_those_of_linux() -> None:
    timers = Retransmission(0, 20 * MS)
    tries = []
    now = 0
    for _ in range(7):
        now = timers.next_ns(now)
        tries.append(now / MS)
        now += 1
    assert tries == [220, 660, 1540, 3300, 5300, 7300, 9300]
    # tcp_model_timeout with tcp_retries2 = 15, a least timer of 200 ms and a longest of 2 s.
    assert timers.gives_up_ns == 27 * SECOND
    assert Retransmission(0, 0, connecting=True).gives_up_ns == 20 * SECOND


def test_connections_over_nothing_are_given_up(topology_of: Build) -> None:
    """One that was open after Linux's 27 s, one that has to be opened after the agent's 20 s."""
    it = Sending(topology_of)
    it.send()
    it.at(300, blackhole=[(0, 1), (0, 2)])
    it.clock.at(SECOND, lambda: it.send(1000, dst=2))
    it.clock.run()
    assert it.arrived == []
    assert it.lost == [
        (21_000, "no connection to 10.0.0.3:7000 within 20 s: timed out"),
        (27_300, "connection timed out"),
    ]


def test_a_world_of_primary_paths_alone_refuses(topology_of: Build) -> None:
    world = World(topology_of(TRIANGLE))
    with pytest.raises(UsageError, match="whole=True"):
        world.cut({0: True, 1: True}, {})
    with pytest.raises(UsageError, match="whole=True"):
        world.measure()


@pytest.mark.parametrize("seed", range(6))
def test_every_sum_is_exact_over_random_cuts(seed: int) -> None:
    """NetStorm-9 with cables cut and mended and directions that swallow everything, at random moments."""
    rng = random.Random(seed)
    topology = load_topology("netstorm-9")
    world = World(topology, whole=True)
    world.use("netstorm", 20_000)
    for _ in range(12):
        begin_ns, length_ns = rng.randrange(3 * SECOND), rng.randrange(10 * MS, 2 * SECOND)
        index = rng.randrange(len(topology.directed))
        change = ({index: True, index ^ 1: True}, {}) if rng.random() < 0.5 else ({}, {index: True})
        mend = tuple(dict.fromkeys(part, False) for part in change)
        world.clock.at(begin_ns, lambda change=change: world.cut(*change))  # type: ignore[misc]
        world.clock.at(begin_ns + length_ns, lambda mend=mend: world.cut(*mend))  # type: ignore[misc]
    for _ in range(3):
        seq = -1
        for site in range(9):
            seq = world.begin(site, allreduce(1_000_000))
        assert world.run_until_complete(seq).delivered == [1_000_000] * 9
    world.clock.run()
    assert world.lanes.rerouting is not None and not world.lanes.rerouting.broken
    primaries = {pair: world.underlay.path(*pair, 0) for pair in ((0, 8), (3, 1), (7, 2))}
    assert {pair: world.lanes.rerouting.path(*pair, 0) for pair in primaries} == primaries


CUT = """
name: cut
topology: {topology}
seed: 1
timeline: [{{at: 500ms, action: {action}, link: dc1-dc2{more}}}]
training: {{model: tensor-1m, iterations: 8, chunk_elements: 50000, deadline_s: {deadline}}}
schedulers: [netstorm, star]
"""


def cut_run(tmp_path: Path, topology: str, action: str, more: str = "", deadline: float = 300) -> Path:
    text = CUT.format(topology=topology, action=action, more=more, deadline=deadline)
    run_experiment(experiment_from_text(text), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("action", ["link-down", "blackhole"])
def test_an_experiment_cuts_and_mends_for_every_turn(tmp_path: Path, action: str) -> None:
    path = cut_run(tmp_path, "triangle", action, ", for: 1s")
    manifest = read_manifest(path)
    assert manifest.status == "completed"
    assert any("retransmission" in reason for reason in manifest.fidelity.reasons)
    with path.joinpath("changes.csv").open(newline="") as file:
        states = [row["state"] for row in csv.DictReader(file)]
    state = "down" if action == "link-down" else action
    assert states == [state, state, "up", "up"] * 2
    slowest = {}
    for label, iterations in read_run(path).iterations.items():
        times = sorted(i.synchronisation_s for i in iterations)
        assert len(times) == 8
        slowest[label] = times[-1] / times[0]
    assert all(ratio > 1.2 for ratio in slowest.values()), slowest


def test_a_cut_that_parts_the_sites_fails_the_run_with_the_connection(tmp_path: Path) -> None:
    words = "the connection between dc1 and dc2 was lost: connection timed out"
    with pytest.raises(RunFailedError, match=words) as failure:
        cut_run(tmp_path, "pair", "link-down")
    assert failure.value.hint == "dc1>dc2, dc2>dc1 carried nothing, which parts dc1 and dc2"
    assert failure.value.exit_code == 5


def test_a_cut_that_parts_the_sites_fails_the_run_at_its_deadline(tmp_path: Path) -> None:
    words = r"^waited 5 s for collective \d of job run \(.*\) under policy 1, .* from dc2"
    with pytest.raises(RunFailedError, match=words):
        cut_run(tmp_path, "pair", "link-down", deadline=5)
