"""Ring all-reduce as chains."""

from __future__ import annotations

import itertools
import random

import pytest

from agents.chunks import cut_smoothly
from agents.planning.base import NetworkView, PlanError
from agents.planning.registry import get_scheduler
from agents.planning.ring import Ring, ring_order, ring_time
from agents.planning.timing import arc_loads, timing_of

from . import vectors as v

FULL = v.undirected(4, "0-1:10 0-2:40 0-3:20 1-2:20 1-3:40 2-3:10")


def test_chains_of_three_sites() -> None:
    trees = Ring().plan(v.V11).trees
    assert [tree.root for tree in trees] == [0, 1, 2]
    assert [tree.share for tree in trees] == [pytest.approx(1 / 3)] * 3
    # Segment 0 starts at site 1, is complete at site 0 and goes on to site 1.
    assert trees[0].parents == v.row("-,2,0")
    assert trees[0].pull_parents == v.row("-,0,1")
    assert trees[1].parents == v.row("1,-,0")
    assert trees[1].pull_parents == v.row("2,-,1")


@pytest.mark.parametrize("n", [2, 3, 4, 7, 9])
def test_every_hop_carries_the_same_and_only_forwards(n: int) -> None:
    rates = {(u, w): 1e8 for u in range(n) for w in range(n) if u != w}
    view = NetworkView(n, rates)
    plan = Ring().plan(view)
    loads = arc_loads(plan.trees, view)
    assert loads == {(k, (k + 1) % n): pytest.approx(2 * (n - 1) / n) for k in range(n)}
    assert timing_of(plan.trees, view).rate_bps == pytest.approx(1e8 * n / (2 * (n - 1)))


def test_equal_segments_to_one_element() -> None:
    sizes = [0] * 9
    for chunk in cut_smoothly((1_000_003,), 1000, Ring().plan(v.V9).shares):
        sizes[chunk.tree] += chunk.size
    assert sum(sizes) == 1_000_003
    assert max(sizes) - min(sizes) <= 1


def test_orders() -> None:
    assert ring_order(FULL, "given") == (0, 1, 2, 3)
    assert ring_order(FULL, "greedy") == (0, 2, 1, 3)
    assert ring_order(FULL, "optimal") == (0, 2, 1, 3)
    assert ring_time(FULL, (0, 1, 2, 3)) == pytest.approx(1 / 10)
    assert ring_time(FULL, (0, 2, 1, 3)) == pytest.approx(1 / 20)


def test_relayed_hops_share_links() -> None:
    """On a line of three the hop 2 -> 0 goes back over both links; each direction of each carries one hop."""
    line = v.undirected(3, "0-1:10 1-2:5")
    assert ring_time(line, (0, 1, 2)) == pytest.approx(1 / 5)
    loads = arc_loads(Ring().plan(line).trees, line)
    assert loads == {arc: pytest.approx(4 / 3) for arc in ((0, 1), (1, 2), (2, 1), (1, 0))}


@pytest.mark.parametrize("seed", range(12))
def test_optimal_is_the_best_of_all_rings(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    rates = {(u, u + 1): rng.choice((20, 50, 100)) * 1e6 for u in range(n - 1)}
    for _ in range(n):
        u, w = rng.sample(range(n), 2)
        rates[u, w] = rng.choice((20, 50, 100)) * 1e6
    view = NetworkView(n, rates | {(w, u): rng.choice((20, 50)) * 1e6 for u, w in rates})
    rings = [(0, *rest) for rest in itertools.permutations(range(1, n))]

    def cost(ring: tuple[int, ...]) -> tuple[float, float]:
        ways = sum(view.hop_cost(a, b) for a, b in zip(ring, (*ring[1:], 0), strict=True))
        return round(ring_time(view, ring), 9), round(ways, 9)

    assert ring_order(view, "optimal") == min(rings, key=lambda ring: (cost(ring), ring))


def test_nine_sites_are_within_reach_and_eleven_are_not() -> None:
    best = ring_order(v.V9, "optimal")
    assert ring_time(v.V9, best) <= ring_time(v.V9, ring_order(v.V9, "greedy"))
    rates = {(u, w): 1e8 for u in range(11) for w in range(11) if u != w}
    with pytest.raises(PlanError, match="optimal ring of 11 sites"):
        Ring("optimal").plan(NetworkView(11, rates))


def test_names_and_a_single_site() -> None:
    assert get_scheduler({"name": "ring", "options": {"order": "greedy"}}, ("a",)).name == "ring-greedy"
    (tree,) = Ring().plan(NetworkView(1, {})).trees
    assert tree.parents == (None,)
