"""The fast engines against the exact reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.coflow.base import Allocation, CoflowError, Ranking, Stage
from agents.coflow.fabric import Fabric, Flow, merged
from agents.coflow.registry import get_ordering
from testbed.coflow import waterfill
from testbed.coflow.demand import Demand
from testbed.coflow.fair_switch import FairSwitch
from testbed.coflow.flow_engine import FlowEngine
from testbed.coflow.greedy_switch import GreedySwitch
from testbed.coflow.madd import Backfill
from testbed.coflow.reference import Arrival, completion_times
from testbed.coflow.simulator import Simulation, make_engine
from topologies.load import topology_from_dict

PORTS = 4
EQUAL = Fabric.switch(PORTS, 2.0)
UNEQUAL = Fabric.switch(PORTS, (1.0, 2.0, 3.0, 5.0, 2.0, 4.0, 1.0, 1.0))
_RING = Fabric.of(
    topology_from_dict(
        {
            "name": "ring",
            "sites": {name: {} for name in "abcd"},
            "links": [
                {"endpoints": ends, "rate": f"{8 * k}kbit"}
                for k, ends in enumerate((["a", "b"], ["b", "c"], ["c", "d"], ["d", "a"]), start=2)
            ],
        }
    )
)
# Sizes and times below are small whole numbers, and so is what a link carries in a unit of time.
RING = replace(_RING, capacity=tuple(rate / 1000 for rate in _RING.capacity))
ports = st.integers(0, PORTS - 1)
coflow = st.dictionaries(st.tuples(ports, ports), st.integers(1, 9), min_size=1, max_size=5)
crossing = st.dictionaries(
    st.tuples(ports, ports).filter(lambda pair: pair[0] != pair[1]), st.integers(1, 9), min_size=1, max_size=5
)
times = st.lists(st.integers(0, 12), min_size=5, max_size=5)
quick = settings(max_examples=25, deadline=None)


class Listed:
    """Coflows at given times."""

    def __init__(self, arrivals: Sequence[Arrival]) -> None:
        self.arrivals = arrivals
        self.place: dict[int, int] = {}

    def start(self, simulation: Simulation) -> None:
        for k, arrival in sorted(enumerate(self.arrivals), key=lambda entry: entry[1].time):
            simulation.at(float(arrival.time), lambda k=k: self._submit(simulation, k))  # type: ignore[misc]

    def _submit(self, simulation: Simulation, k: int) -> None:
        self.place[simulation.submit(Demand.of(self.arrivals[k].flows), job=k)] = k

    def finished(self, simulation: Simulation, number: int) -> None:
        pass

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        return ()


def simulated(
    fabric: Fabric,
    arrivals: Sequence[Arrival],
    spec: Any,
    allocation: Allocation,
    refresh_s: float | None = None,
) -> tuple[dict[int, float], Simulation]:
    workload = Listed(arrivals)
    simulation = Simulation(fabric, get_ordering(spec), workload, allocation, refresh_s)
    simulation.run()
    return {workload.place[number]: entry.finish for number, entry in simulation.done.items()}, simulation


def listed(instance: list[dict[tuple[int, int], int]], when: list[int]) -> list[Arrival]:
    """In order of arrival, as both simulators number them then."""
    return [
        Arrival(merged(Flow(u, v, float(size)) for (u, v), size in sizes.items()), float(time))
        for sizes, time in zip(instance, sorted(when), strict=False)
    ]


@quick
@given(st.lists(coflow, min_size=1, max_size=5), times)
@pytest.mark.parametrize("spec", ["fifo", {"name": "varys", "options": {"static": True}}, "sincronia"])
def test_greedy_on_equal_ports(spec: Any, instance: Any, when: list[int]) -> None:
    arrivals = listed(instance, when)
    done, simulation = simulated(EQUAL, arrivals, spec, "greedy")
    assert isinstance(simulation._engine, GreedySwitch)
    assert done == pytest.approx(completion_times(EQUAL, arrivals, get_ordering(spec), "greedy"))


@quick
@given(st.lists(coflow, min_size=1, max_size=5), times)
@pytest.mark.parametrize("fabric", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_fair_on_a_switch(fabric: Fabric, instance: Any, when: list[int]) -> None:
    arrivals = listed(instance, when)
    done, simulation = simulated(fabric, arrivals, "fair", "fair")
    assert isinstance(simulation._engine, FairSwitch)
    assert done == pytest.approx(completion_times(fabric, arrivals, get_ordering("fair")))


@quick
@given(st.lists(crossing, min_size=1, max_size=4), times)
@pytest.mark.parametrize(
    ("spec", "allocation"),
    [("fifo", "greedy"), ("fair", "fair"), ({"name": "fifo_lm", "options": {"threshold": 6}}, "greedy")],
)
@pytest.mark.parametrize("fabric", [UNEQUAL, RING], ids=["unequal", "ring"])
def test_every_flow_on_any_links(
    fabric: Fabric, spec: Any, allocation: Allocation, instance: Any, when: list[int]
) -> None:
    arrivals = listed(instance, when)
    done, _ = simulated(fabric, arrivals, spec, allocation)
    assert done == pytest.approx(completion_times(fabric, arrivals, get_ordering(spec), allocation))


@quick
@given(st.lists(coflow, min_size=1, max_size=5), times)
def test_fair_by_either_engine(instance: Any, when: list[int]) -> None:
    engines = FairSwitch(EQUAL), FlowEngine(EQUAL, "fair")
    for number, arrival in enumerate(listed(instance, when)):
        for engine in engines:
            engine.add(number, Demand.of(arrival.flows))
    ranking = Ranking((tuple(range(len(instance))),))
    for engine in engines:
        engine.rank(ranking)
    while (then := engines[0].next()) < inf:
        assert engines[1].next() == pytest.approx(then)
        first, second = (engine.advance(then) for engine in engines)
        assert first == sorted(second)
        for number in engines[0]._flows:
            assert engines[0].loads(number) == pytest.approx(engines[1].loads(number), abs=1e-6)
            assert engines[0].sent(number) == pytest.approx(engines[1].sent(number), abs=1e-6)
            assert engines[0].rate(number) == pytest.approx(engines[1].rate(number))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=5, max_size=5), st.data())
def test_settled_levels_are_those_of_progressive_filling(rows: list[list[int]], data: st.DataObject) -> None:
    count = np.array(rows, dtype=float)
    capacity = st.lists(st.integers(0, 9), min_size=5, max_size=5)
    send, receive = (np.array(data.draw(capacity), dtype=float) for _ in range(2))
    start = tuple(np.array(data.draw(capacity), dtype=float) for _ in range(2))
    there = count > 0
    by_newton, by_filling = (
        np.minimum(x[:, None], y[None, :])[there]
        for x, y in (
            waterfill.switch_levels(count, send, receive, (start[0], start[1])),
            waterfill._filled(count, send, receive),
        )
    )
    assert by_newton == pytest.approx(by_filling, abs=1e-9)


def test_madd_lets_flows_end_together_and_gives_the_rest_away() -> None:
    fabric = Fabric.switch(3, 1.0)
    engine = FlowEngine(fabric, "madd", refresh_s=inf)
    engine.add(0, Demand.of([Flow(0, 0, 4), Flow(0, 1, 2), Flow(1, 0, 2)]))
    # Needs the receiving port 0, which is full: skipped, then served from what is left.
    engine.add(1, Demand.of([Flow(2, 0, 6), Flow(2, 2, 3)]))
    engine.rank(Ranking.of([0, 1]))
    assert engine._coflows[0].rates == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert engine._coflows[1].rates == pytest.approx([0, 1])
    assert engine.next() == pytest.approx(6)
    # What has ended leaves its port unused until the next coflow ends: a matter of the cadence.
    assert engine.advance(4.0) == []
    assert engine._coflows[1].rates.tolist() == [0, 0]
    assert engine.advance(6.0) == [0]
    assert engine.waited(0) == 0
    assert engine._coflows[1].rates == pytest.approx([1, 0])
    assert engine.next() == pytest.approx(12)
    engine.advance(12.0)
    # Nothing of it was sent from 3, when its second flow ended, at the first moment after that which is asked for.
    assert engine.waited(1) == pytest.approx(2)


@pytest.mark.parametrize(
    ("backfill", "second", "third"),
    [
        # Coflow 2 takes all of receiving port 0, so 1 and 0 are skipped. All their flows leave port 1.
        ("none", [0, 0], [0, 0, 0]),
        # 1 comes first in the order and takes it all.
        ("ranked", [0, 1], [0, 0, 0]),
        # A fifth for each of five flows, of which two are held up by port 0; coflow 0 came first and gets the rest.
        ("coflowsim", [0, 0.2], [0, 0.6, 0.2]),
        # 1 first: a half for each of its two, one held up; of the other half a third for each of 0, then the rest.
        ("in_turn", [0, 0.5], [0, 0.5 - 1 / 6, 1 / 6]),
    ],
)
@pytest.mark.parametrize("routes", [False, True])
def test_what_madd_leaves_by_each_rule(
    backfill: Backfill, second: list[float], third: list[float], routes: bool
) -> None:
    fabric = Fabric.switch(4, 1.0)
    if routes:
        pairs = {(u, v): fabric.route(u, v) for u in range(4) for v in range(4)}
        fabric = Fabric(fabric.capacity, pairs)
    engine = FlowEngine(fabric, "madd", inf, backfill)
    # Numbered by arrival, ranked otherwise.
    engine.add(0, Demand.of([Flow(1, 0, 3), Flow(1, 1, 3), Flow(1, 2, 3)]))
    engine.add(1, Demand.of([Flow(1, 0, 1), Flow(1, 3, 1)]))
    engine.add(2, Demand.of([Flow(0, 0, 1)]))
    engine.rank(Ranking.of([2, 1, 0]))
    assert engine._coflows[2].rates == pytest.approx([1])
    assert engine._coflows[1].rates == pytest.approx(second)
    assert engine._coflows[0].rates == pytest.approx(third)


def test_a_short_cadence_wastes_less() -> None:
    arrivals = [
        Arrival((Flow(0, 0, 4.0), Flow(1, 0, 4.0))),
        Arrival((Flow(0, 1, 1.0), Flow(0, 2, 3.0))),
        Arrival((Flow(2, 1, 2.0), Flow(1, 2, 4.0))),
    ]
    means = []
    for refresh_s in (0.01, 1.0, inf):
        done, _ = simulated(EQUAL, arrivals, "varys", "madd", refresh_s)
        means.append(sum(done.values()) / 3)
    assert means[0] <= means[1] + 0.02 <= means[2] + 0.04
    assert means[0] < means[2]


def test_the_fastest_engine_is_chosen_and_the_choice_can_be_forced() -> None:
    fair, fifo, lm = (get_ordering(name) for name in ("fair", "fifo", "fifo_lm"))
    assert isinstance(make_engine(EQUAL, fifo, "greedy", 0.0), GreedySwitch)
    assert isinstance(make_engine(UNEQUAL, fifo, "greedy", 0.0), FlowEngine)
    assert isinstance(make_engine(EQUAL, lm, "greedy", 0.0), FlowEngine)
    assert isinstance(make_engine(UNEQUAL, fair, "fair", 0.0), FairSwitch)
    assert isinstance(make_engine(EQUAL, fair, "fair", 0.5), FlowEngine)


def test_epochs_run_to_the_end() -> None:
    spec = {"name": "sincronia", "options": {"online": "epochs", "unit_s": 0.5}}
    arrivals = listed(
        [{(0, 0): 9, (1, 2): 4}, {(0, 1): 2}, {(2, 2): 7}, {(3, 3): 1, (0, 0): 5}], [0, 1, 3, 40]
    )
    done, simulation = simulated(EQUAL, arrivals, spec, "greedy")
    assert sorted(done) == [0, 1, 2, 3]
    assert all(entry.cct >= entry.isolation - 1e-9 for entry in simulation.done.values())
    # Nothing is left for later: the last coflow, alone, takes what it needs alone.
    last = max(simulation.done.values(), key=lambda entry: entry.arrival)
    assert last.cct == pytest.approx(last.isolation)


def test_flows_that_cannot_be_are_refused() -> None:
    with pytest.raises(CoflowError, match="switch has ports"):
        simulated(EQUAL, [Arrival((Flow(0, 4, 1),))], "fifo", "greedy")
    with pytest.raises(CoflowError, match="without a byte"):
        simulated(EQUAL, [Arrival((Flow(0, 1, 0),))], "fifo", "greedy")
    with pytest.raises(CoflowError, match="a backfill 'all'"):
        Simulation(EQUAL, get_ordering("varys"), Listed([]), backfill="all")  # type: ignore[arg-type]
    with pytest.raises(CoflowError, match="a refresh every -1"):
        simulated(EQUAL, [], "varys", "madd", -1)
