"""What must hold for every instance: the proven factors, against exact optima of small ones."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction as F
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.coflow.base import Ordering, Ranking, View
from agents.coflow.bssi import bssi, placements, prefix_loads
from agents.coflow.fabric import Fabric, Flow, merged
from agents.coflow.horizon import least_sum
from agents.coflow.rates import Backlog, greedy, max_min
from agents.coflow.registry import get_ordering
from agents.coflow.sincronia import Sincronia
from testbed.coflow.bounds import open_shop_optimum
from testbed.coflow.reference import Arrival, completion_times

PORTS = 4
SWITCH = Fabric.switch(PORTS, F(1))
ports = st.integers(0, PORTS - 1)
coflow = st.dictionaries(st.tuples(ports, ports), st.integers(1, 9), min_size=1, max_size=5)
coflows = st.lists(coflow, min_size=1, max_size=5)
quick = settings(max_examples=50, deadline=None)


def flows(sizes: Mapping[tuple[int, int], int]) -> tuple[Flow, ...]:
    return merged(Flow(s, r, F(size)) for (s, r), size in sizes.items())


def loads_of(instance: list[dict[tuple[int, int], int]]) -> list[dict[int, Any]]:
    return [SWITCH.loads(flows(sizes)) for sizes in instance]


class Frozen:
    """One order for the whole run."""

    name = "frozen"
    allocation = "greedy"
    reads_loads = False

    def __init__(self, order: list[int]) -> None:
        self._order = order

    def order(self, view: View) -> Ranking:
        present = {coflow.id for coflow in view.coflows}
        return Ranking.of(number for number in self._order if number in present)


@quick
@given(coflows, st.data())
def test_the_order_is_within_twice_the_open_shop_optimum(instance: Any, data: st.DataObject) -> None:
    loads = loads_of(instance)
    weights = [F(data.draw(st.integers(1, 5))) for _ in loads]
    value = prefix_loads(bssi(loads, weights), loads)
    cost = sum(weights[k] * value[k] for k in value)
    optimum = open_shop_optimum(loads, weights)
    assert optimum <= cost <= 2 * optimum


@quick
@given(coflows)
def test_greedy_ends_within_twice_the_prefix_load_and_four_times_the_optimum(instance: Any) -> None:
    loads = loads_of(instance)
    order = bssi(loads)
    value = prefix_loads(order, loads)
    arrivals = [Arrival(flows(sizes)) for sizes in instance]
    done = completion_times(SWITCH, arrivals, Frozen(order))
    assert all(done[k] <= 2 * value[k] for k in done)
    assert sum(done.values()) <= 4 * open_shop_optimum(loads)
    again = completion_times(SWITCH, arrivals, Sincronia())
    assert sum(again.values()) <= 4 * open_shop_optimum(loads)


@quick
@given(coflows)
def test_weights_never_go_below_zero_and_everyone_is_placed_once(instance: Any) -> None:
    steps = placements(loads_of(instance))
    assert all(step.weight >= 0 and step.theta >= 0 for step in steps)
    assert sorted(step.chosen for step in steps) == list(range(len(instance)))


@quick
@given(coflows, st.permutations(range(2 * PORTS)))
def test_the_names_of_ports_matter_only_in_ties(instance: Any, names: list[int]) -> None:
    # Loads without equal sums: each made unique by a power of a base larger than all of them.
    base = 1000
    loads = [
        {link: load * base + F(1, 7 ** (1 + 8 * k + link)) for link, load in own.items()}
        for k, own in enumerate(loads_of(instance))
    ]
    totals: dict[int, Any] = {}
    for own in loads:
        for link, load in own.items():
            totals[link] = totals.get(link, 0) + load
    renamed = [{names[link]: load for link, load in own.items()} for own in loads]
    first, second = placements(loads), placements(renamed)
    for one, other in zip(first, second, strict=True):
        if one.link is None or names[one.link] != other.link:
            # Only a tie within the tolerance lets the lower number win.
            assert one.link is not None and other.link is not None
            back = names.index(other.link)
            assert abs(totals[back] - totals[one.link]) * 10**8 <= totals[one.link]
            return
        assert one.chosen == other.chosen
        for link, load in loads[one.chosen].items():
            totals[link] -= load


@quick
@given(coflow, st.permutations(range(5)))
def test_greedy_leaves_no_flow_that_could_move(sizes: Any, places: list[int]) -> None:
    own = flows(sizes)
    backlog = [Backlog(k, own[k].size, SWITCH.route(own[k].src, own[k].dst)) for k in places if k < len(own)]
    free: dict[int, Any] = dict(enumerate(SWITCH.capacity))
    greedy(backlog, free)
    assert all(any(free[link] == 0 for link in flow.route) for flow in backlog)
    assert min(free.values()) >= 0


@quick
@given(coflow)
def test_max_min_gives_every_flow_a_bottleneck(sizes: Any) -> None:
    own = flows(sizes)
    backlog = [Backlog(k, flow.size, SWITCH.route(flow.src, flow.dst)) for k, flow in enumerate(own)]
    rates = max_min(backlog, dict(enumerate(SWITCH.capacity)))
    for flow in backlog:
        full = []
        for link in flow.route:
            here = [rates[other.id] for other in backlog if link in other.route]
            assert sum(here) <= 1
            full.append(sum(here) == 1 and rates[flow.id] == max(here))
        assert any(full)


@quick
@given(st.lists(coflow, min_size=1, max_size=4))
def test_the_optimum_over_subsets_is_the_one_over_permutations(instance: Any) -> None:
    loads = loads_of(instance)
    by_hand = min(sum(prefix_loads(order, loads).values()) for order in permutations(range(len(loads))))
    assert open_shop_optimum(loads) == by_hand


@quick
@given(coflows, st.data())
def test_the_least_sum_is_that_of_all_orders(instance: Any, data: st.DataObject) -> None:
    loads = loads_of(instance)
    alone = [F(data.draw(st.integers(0, 30))) for _ in loads]
    weights = [F(data.draw(st.integers(1, 5))) for _ in loads]

    def cost(order: Any) -> F:
        before: dict[int, Any] = {}
        total = F(0)
        for k in order:
            for link, load in loads[k].items():
                before[link] = before.get(link, 0) + load
            total += weights[k] * max(alone[k], *(before[link] for link in loads[k]))
        return total

    best = least_sum(loads, alone, weights)
    assert cost(best) == min(cost(order) for order in permutations(range(len(loads))))


@quick
@given(coflows, st.lists(st.integers(0, 12), min_size=5, max_size=5))
@pytest.mark.parametrize("name", ["fair", "fifo", "sincronia", "varys"])
def test_all_bytes_arrive_and_nobody_beats_isolation(name: str, instance: Any, when: list[int]) -> None:
    arrivals = [Arrival(flows(sizes), F(time)) for sizes, time in zip(instance, when, strict=False)]
    ordering: Ordering = get_ordering(name)
    done = completion_times(SWITCH, arrivals, ordering, None if name == "fair" else "greedy")
    for k, own in enumerate(loads_of(instance)):
        assert done[k] >= arrivals[k].time + max(own.values())
    # Work conserving: the busiest moment cannot outlast all work after the last arrival.
    assert max(done.values()) <= max(when) + sum(sum(own.values()) for own in loads_of(instance))


@quick
@given(coflows)
def test_rationals_and_floats_agree(instance: Any) -> None:
    exact = loads_of(instance)
    rough = [{link: float(load) for link, load in own.items()} for own in exact]
    assert bssi(exact) == bssi(rough)
