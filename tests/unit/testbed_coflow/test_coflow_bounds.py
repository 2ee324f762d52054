"""Lower bounds against exact optima of small instances, and against what policies come to."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.coflow.fabric import Fabric, Flow, merged
from agents.coflow.registry import get_ordering
from testbed.coflow.bounds import open_shop_optimum, srpt_sum, trace_bound
from testbed.coflow.reference import Arrival, completion_times

PORTS = 3
SWITCH = Fabric.switch(PORTS, 1.0)
ports = st.integers(0, PORTS - 1)
coflow = st.dictionaries(st.tuples(ports, ports), st.integers(1, 9), min_size=1, max_size=4)


def test_least_left_first_by_hand() -> None:
    assert srpt_sum([]) == 0
    assert srpt_sum([(0, 5), (1, 2)]) == 2 + 7
    # Equal or more is left than comes: no change.
    assert srpt_sum([(0, 3), (1, 2)]) == 3 + 4
    assert srpt_sum([(0, 1), (10, 1)]) == 2


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=5))
def test_nothing_on_one_machine_beats_it(jobs: list[tuple[int, int]]) -> None:
    def by(order: tuple[int, ...]) -> int:
        """Whoever of those there is comes first in the order has the next unit."""
        left, total, now = {k: jobs[k][1] for k in order}, 0, 0
        while any(left.values()):
            now += 1
            for k in order:
                if left[k] and jobs[k][0] < now:
                    left[k] -= 1
                    total += (now - jobs[k][0]) if not left[k] else 0
                    break
        return total

    assert srpt_sum(jobs) == min(by(order) for order in permutations(range(len(jobs))))


def test_a_coflow_is_charged_to_the_link_where_it_waits() -> None:
    # On link 0 they take 3 and 5 together; charged to the ends that they have alone, 2 and 4.
    loads = [{0: 2.0, 1: 2.0}, {0: 3.0, 2: 4.0}]
    assert trace_bound([0, 0], loads) == 2 + 5
    assert trace_bound([0, 9], loads) == 2 + 4
    assert trace_bound([], []) == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(coflow, min_size=1, max_size=5), st.lists(st.integers(0, 12), min_size=5, max_size=5))
def test_no_policy_beats_the_bound(instance: Any, when: list[int]) -> None:
    flows = [merged(Flow(u, v, float(size)) for (u, v), size in sizes.items()) for sizes in instance]
    loads = [SWITCH.loads(own) for own in flows]
    arrivals = [Arrival(own, float(time)) for own, time in zip(flows, when, strict=False)]
    bound = trace_bound([arrival.time for arrival in arrivals], loads)
    assert bound >= sum(max(own.values()) for own in loads) * (1 - 1e-9)
    for policy in ("fair", "fifo", "sincronia", "varys"):
        done = completion_times(SWITCH, arrivals, get_ordering(policy), "fair" if policy == "fair" else "greedy")
        assert sum(done[k] - arrivals[k].time for k in done) >= bound * (1 - 1e-9)
    assert trace_bound([0.0] * len(loads), loads) <= open_shop_optimum(loads) * (1 + 1e-9)


def test_the_bound_is_reached_where_nothing_collides() -> None:
    loads = [{0: 2.0}, {0: 3.0}, {1: 1.0}]
    assert trace_bound([0, 0, 0], loads) == pytest.approx(2 + 5 + 1)
