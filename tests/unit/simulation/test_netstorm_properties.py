"""The property tests (a) to (e) of NetStorm's specification, on random connected networks.

(d), how soon a plan follows a bandwidth step, is tests/unit/simulation/test_measuring.py.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from agents.chunks import allocate
from agents.planning.base import NetworkView
from agents.planning.netstorm import NetStorm
from testbed.simulation.bounds import bound
from testbed.simulation.synchronise import synchronise
from testbed.simulation.trials import FAULTS, run_trial
from tests.unit.simulation.conftest import build_topology
from topologies.model import Topology


def network(seed: int) -> Topology:
    """Two to eight sites, rates of 20 to 155 Mbit/s that differ by direction, some of them equal."""
    rng = random.Random(seed)
    n = rng.randint(2, 8)
    pairs = {(rng.randrange(v), v) for v in range(1, n)}
    pairs |= {(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.3}
    draw = rng.choice((lambda: rng.randint(20, 155), lambda: rng.choice((20, 50, 100))))
    return build_topology({arc: draw() for u, v in sorted(pairs) for arc in ((u, v), (v, u))})


def distances(view: NetworkView, root: int) -> list[float]:
    """Least cost of every site to the root (Bellman and Ford), by nothing of the planner's own."""
    best = [0.0 if v == root else math.inf for v in range(view.n)]
    for _ in range(view.n):
        for (u, v), rate in view.rates.items():
            best[u] = min(best[u], 1e6 / rate + best[v])
    return best


@pytest.mark.parametrize("seed", range(30))
def test_property_a_parents_form_a_spanning_in_tree_of_fastest_paths(seed: int) -> None:
    view = NetworkView.from_topology(network(seed))
    for tree in NetStorm().plan(view).trees:
        wanted = distances(view, tree.root)
        for site in range(view.n):
            path = [site]
            while (parent := tree.parents[path[-1]]) is not None:
                path.append(parent)
                assert len(path) <= view.n, "a circle"
            assert path[-1] == tree.root
            assert sum(1e6 / view.rates[hop] for hop in pairwise(path)) == pytest.approx(wanted[site])


@pytest.mark.parametrize("seed", range(30))
def test_property_b_every_element_has_a_root_and_no_root_has_a_chunk_too_many(seed: int) -> None:
    rng = random.Random(seed)
    view = NetworkView.from_topology(network(seed))
    plan = NetStorm(rng.randint(1, view.n)).plan(view)
    sizes = tuple(rng.choice((1, 64, 999, 10_000)) for _ in range(rng.randint(1, 6)))
    largest = rng.randint(1, 2000)
    assigned = [0] * view.n
    for chunk in allocate(sizes, largest, plan.shares):
        assigned[plan.trees[chunk.tree].root] += chunk.size
    assert sum(assigned) == sum(sizes)
    share = {tree.root: tree.share for tree in plan.trees}
    for root, elements in enumerate(assigned):
        if root in share:
            assert elements < math.ceil(share[root] * sum(sizes)) + largest
        else:
            assert elements == 0


def test_property_c_every_chunk_is_summed_once_a_site_under_delays_and_changes_of_policy() -> None:
    """A trial ends with a violation otherwise; more seeds, and other faults, in test_trials.py."""
    reports = [run_trial(seed * len(FAULTS)) for seed in range(12)]
    assert [report.violation for report in reports] == [None] * len(reports)
    assert sum(report.policies for report in reports) > 3 * len(reports)


@pytest.mark.parametrize("seed", range(15))
def test_property_e_no_rate_is_above_the_bound(seed: int) -> None:
    topology = network(seed)
    limit = bound(topology).rate_bps
    for scheduler in ("netstorm", "packing", "star-best"):
        result = synchronise(topology, scheduler, 300_000, 10_000)
        assert 8 * 4 * 300_000 / result.seconds <= limit * (1 + 1e-9)
