"""Packing: rates against the proven bound, vectors by hand, and what must hold for any network."""

from __future__ import annotations

import math
import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.planning.arborescences import cheapest_arborescence
from agents.planning.base import NetworkView, Plan, PlanError, Tree
from agents.planning.packing import PackingScheduler
from agents.planning.registry import get_scheduler
from agents.planning.timing import arc_loads, timing_of
from topologies.errors import UsageError

from . import vectors as v

P1 = v.undirected(4, "0-1:8 1-2:4 2-3:8")
P2 = v.undirected(3, "0-1:10 1-2:10 0-2:10")
P3 = v.undirected(3, "0-1:10 1-2:10 0-2:4")
P5 = v.undirected(4, "0-1:10 1-2:10 0-2:10 0-3:8")
P7 = v.directed(2, "0>1:8 1>0:5")


def summary(plan: Plan) -> list[tuple[float, int, tuple[int | None, ...]]]:
    """(rate in Mbit/s, root, parents) of every tree."""
    return [(round(tree.score, 6), tree.root, tree.parents) for tree in plan.trees]


def partition_bound(n: int, rates: dict[tuple[int, int], float]) -> float:
    """min over partitions of crossing capacity / (parts - 1), by looking at every partition."""

    def partitions(site: int, parts: int) -> list[list[int]]:
        if site == n:
            return [[]]
        return [
            [part, *rest] for part in range(parts + 1) for rest in partitions(site + 1, max(parts, part + 1))
        ]

    best = math.inf
    for labels in partitions(0, 0):
        count = len(set(labels))
        if count > 1:
            crossing = sum(rate for (u, w), rate in rates.items() if u < w and labels[u] != labels[w])
            best = min(best, crossing / (count - 1))
    return best


def random_rates(rng: random.Random, n: int, symmetric: bool) -> dict[tuple[int, int], float]:
    pairs = {(rng.randrange(w), w) for w in range(1, n)}
    pairs |= {tuple(sorted(rng.sample(range(n), 2))) for _ in range(n)}
    rates: dict[tuple[int, int], float] = {}
    for u, w in sorted(pairs):
        rates[u, w] = rng.randint(20, 155) * 1e6
        rates[w, u] = rates[u, w] if symmetric else rng.randint(20, 155) * 1e6
    return rates


# ---- vectors


def test_a_line_has_one_tree_rooted_at_the_lower_of_its_two_centres() -> None:
    plan = PackingScheduler().plan(P1)
    assert summary(plan) == [(4.0, 1, v.row("1,-,1,2"))]
    assert plan.timing is not None
    assert plan.timing.rate_bps == pytest.approx(4e6)


def test_a_triangle_of_equal_links() -> None:
    plan = PackingScheduler().plan(P2)
    assert [(round(tree.score, 6), tree.root) for tree in plan.trees] == [(5.0, 0), (5.0, 1), (5.0, 2)]


def test_a_triangle_with_one_slow_link() -> None:
    assert summary(PackingScheduler().plan(P3)) == [
        (8.0, 1, v.row("1,-,1")),
        (2.0, 0, v.row("-,0,0")),
        (2.0, 2, v.row("2,2,-")),
    ]


def test_among_many_packings_the_one_of_least_latency() -> None:
    assert summary(PackingScheduler().plan(P5)) == [(8.0, 0, v.row("-,0,0,0"))]


def test_two_sites_with_unequal_directions() -> None:
    plan = PackingScheduler().plan(P7)
    assert summary(plan) == [(5.0, 0, (None, 0))]
    assert plan.trees[0].pull_parents is None


def test_netstorms_graph_with_equal_links() -> None:
    packing = PackingScheduler().pack(v.V9)
    assert packing.rate == pytest.approx(160)
    assert packing.upper_bound == pytest.approx(160)
    # As directed links the same rate comes out of the other programme.
    slower = NetworkView(9, v.V9.rates | {(0, 1): 100.001e6})
    assert PackingScheduler().pack(slower).rate == pytest.approx(160, rel=1e-4)


def test_pull_trees_of_their_own_where_directions_differ() -> None:
    """Site 0 sends fast to 1 and receives fast from 2: sums go one way round and results the same way on."""
    view = v.directed(3, "0>1:10 1>2:10 2>0:10 1>0:1 2>1:1 0>2:1")
    plan = PackingScheduler().plan(view)
    assert any(tree.pull_parents is not None for tree in plan.trees)
    assert timing_of(plan.trees, view).rate_bps == pytest.approx(8.25e6, rel=0.02)


# ---- what must hold


@pytest.mark.parametrize("seed", range(25))
def test_the_rate_is_the_partition_bound(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 7)
    rates = random_rates(rng, n, symmetric=True)
    packing = PackingScheduler().pack(NetworkView(n, rates))
    assert packing.rate == pytest.approx(partition_bound(n, rates) / 1e6, rel=1e-3)
    assert packing.upper_bound >= packing.rate * (1 - 1e-9)
    renamed = list(range(n))
    rng.shuffle(renamed)
    other = NetworkView(n, {(renamed[u], renamed[w]): rate for (u, w), rate in rates.items()})
    assert PackingScheduler().pack(other).rate == pytest.approx(packing.rate, rel=1e-3)


@given(st.integers(0, 10_000), st.integers(2, 8), st.booleans())
@settings(max_examples=25, deadline=None)
def test_trees_fit_the_links(seed: int, n: int, symmetric: bool) -> None:
    rates = random_rates(random.Random(seed), n, symmetric)
    view = NetworkView(n, rates)
    plan = PackingScheduler().plan(view)
    packing = PackingScheduler().pack(view)
    assert plan == PackingScheduler().plan(view)
    assert math.fsum(tree.rate for tree in packing.trees) == pytest.approx(packing.rate, rel=1e-4)
    assert packing.rate <= packing.upper_bound * (1 + 1e-9)
    for arc, load in arc_loads(plan.trees, view).items():
        assert load * packing.rate * 1e6 <= rates[arc] * (1 + 1e-4)
    assert plan.timing is not None
    assert plan.timing.rate_bps == pytest.approx(packing.rate * 1e6, rel=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_unequal_directions_reach_a_directed_cut_or_partition(seed: int) -> None:
    """Most draws meet min(directed cut, directed partition) exactly, and none exceeds it."""
    rng = random.Random(seed)
    n = rng.randint(3, 6)
    rates = random_rates(rng, n, symmetric=False)
    packing = PackingScheduler().pack(NetworkView(n, rates))
    cuts = [
        sum(rate for (u, w), rate in rates.items() if mask >> u & 1 and not mask >> w & 1)
        for mask in range(1, 2**n - 1)
    ]
    both = {(u, w): (rates[u, w] + rates[w, u]) / 2 for u, w in rates}
    limit = min(*cuts, partition_bound(n, both)) / 1e6
    assert packing.rate <= limit * (1 + 1e-9)
    assert packing.rate >= limit * 0.999


def test_equal_rates_give_the_same_through_either_programme() -> None:
    rates = random_rates(random.Random(3), 7, symmetric=True)
    first = next(iter(rates))
    tilted = rates | {first: rates[first] * (1 + 1e-6)}
    either = [PackingScheduler().pack(NetworkView(7, given)).rate for given in (rates, tilted)]
    assert either[0] == pytest.approx(either[1], rel=2e-3)


@pytest.mark.parametrize("seed", range(20))
def test_arborescences_are_the_cheapest(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 5)
    arcs = [(u, w) for u in range(n) for w in range(n) if u != w and rng.random() < 0.8]
    arcs += [(u, (u + 1) % n) for u in range(n) if (u, (u + 1) % n) not in arcs]
    costs = [float(rng.randint(0, 9)) for _ in arcs]
    found = cheapest_arborescence(n, 0, arcs, costs)
    assert found is not None

    def cheapest(site: int, chosen: dict[int, int]) -> float:
        if site == n:
            for start in range(n):
                seen, w = set(), start
                while w != 0:
                    if w in seen:
                        return math.inf
                    seen.add(w)
                    w = arcs[chosen[w]][0]
            return sum(costs[k] for k in chosen.values())
        return min(
            cheapest(site + 1, {**chosen, site: k}) for k, (_, head) in enumerate(arcs) if head == site
        )

    assert sum(costs[k] for k in found) == cheapest(1, {})
    assert sorted(arcs[k][1] for k in found) == list(range(1, n))


def test_delays_move_the_centre() -> None:
    """With a long delay at one end, the middle of a line moves there."""
    line = v.undirected(5, "0-1:10 1-2:10 2-3:10 3-4:10")
    assert PackingScheduler().plan(line).trees[0].root == 2
    far = NetworkView(5, line.rates, delays={(3, 4): 2.0, (4, 3): 2.0})
    plan = PackingScheduler().plan(far)
    assert plan.trees[0].root == 3
    assert plan.timing is not None
    assert (3, 4, pytest.approx(1e-7), 2.0) in plan.timing.hops


def test_a_single_site_and_an_unreachable_one() -> None:
    assert PackingScheduler().plan(NetworkView(1, {})).trees == (Tree(0, 1.0, 0.0, (None,)),)
    with pytest.raises(PlanError, match="no path to a from c"):
        PackingScheduler().plan(NetworkView(3, {(0, 1): 1e6, (1, 0): 1e6}, ("a", "b", "c")))


def test_hops_are_links() -> None:
    for tree in PackingScheduler().plan(v.V6).trees:
        for site, parent in enumerate(tree.parents):
            assert parent is None or (site, parent) in v.V6.rates
        for site, parent in enumerate(tree.down_parents):
            assert parent is None or (parent, site) in v.V6.rates


def test_sixty_four_sites() -> None:
    """Regular graphs of equal links are the hardest: here a ring of rings, all links tight at once or not."""
    rates: dict[tuple[int, int], float] = {}
    for u in range(64):
        for w in ((u + 1) % 64, (u + 9) % 64):
            rates[u, w] = rates[w, u] = 50e6 + 1e6 * ((u * 7) % 11)
    packing = PackingScheduler(latency=False).pack(NetworkView(64, rates))
    assert packing.upper_bound / packing.rate - 1 < 1e-3


# ---- options


def test_options() -> None:
    spec = {
        "name": "packing",
        "options": {"gap": 0.01, "rounds": 5, "latency": False, "run_ahead": 0, "roots": 3},
    }
    assert get_scheduler(spec, ("a",)) == PackingScheduler(0.01, 5, False, None, 3)
    assert get_scheduler("packing", ("a",)) == PackingScheduler()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gap": 2}, "gap cannot be 2 (a number from 0 to 1)"),
        ({"gap": True}, "gap cannot be True"),
        ({"rounds": 0}, "rounds cannot be 0"),
        ({"latency": "yes"}, "latency cannot be 'yes' (true or false)"),
        ({"run_ahead": -1}, "run_ahead cannot be -1 (a number from 0 on)"),
        ({"message_s": "1ms"}, "message_s cannot be '1ms' (a number from 0 to 10)"),
        ({"link_order": "slak"}, "did you mean slack"),
    ],
)
def test_what_it_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        get_scheduler({"name": "packing", "options": options}, ("a",))


def test_link_order_is_offered_to_every_scheduler_that_plans() -> None:
    for name in ("star-best", "netstorm", "mlnet", "ring", "packing"):
        for order in ("fifo", "index", "slack"):
            scheduler = get_scheduler({"name": name, "options": {"link_order": order}}, ("a",) * 9)
            plan = scheduler.plan(v.V9)
            plain = get_scheduler(name, ("a",) * 9).plan(v.V9)
            assert (plan.scheduler, plan.link_order) == (f"{name}+{order}", order)
            assert plan.scheduler == scheduler.name
            assert (plan.trees, plan.cut, plan.run_ahead) == (plain.trees, plain.cut, plain.run_ahead)


def test_the_timing_of_relayed_hops() -> None:
    (tree,) = get_scheduler("star", ("a",) * 4).plan(P1).trees
    timing = timing_of((tree,), P1)
    # Link 0-1 (8) carries three flows each way, link 1-2 (4) two.
    assert timing.rate_bps == pytest.approx(2e6)
    per_bit = {(u, w): seconds for u, w, seconds, _ in timing.hops}
    assert per_bit[3, 0] == pytest.approx((1 / 8 + 1 / 4 + 1 / 8) / 1e6)
    assert all(len(list(pairwise(P1.hop(u, w)))) == abs(u - w) for u, w in per_bit)
