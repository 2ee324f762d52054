"""NetStorm's trees, scores, roots and shares against hand-computed vectors."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest

from agents.planning.base import NetworkView, PlanError
from agents.planning.netstorm import NetStorm, keep_roots, level_scores
from agents.planning.routes import follow
from topologies.errors import UsageError

from . import vectors as v

NAMES9 = tuple(f"dc{k}" for k in range(1, 10))


def scores_of(view: NetworkView) -> list[Fraction]:
    return [Fraction(score).limit_denominator(10_000) for score in level_scores(view)]


@pytest.mark.parametrize(
    ("view", "parents"),
    [
        (v.V1, ("-,0,1", "1,-,1", "1,2,-")),
        (v.V2, ("-,0,1,2", "1,-,1,2", "1,2,-,2", "1,2,3,-")),
        (v.V3, ("-,0,0,0,0", "1,-,0,0,0", "2,0,-,0,0", "3,0,0,-,0", "4,0,0,0,-")),
        (v.V4, ("-,0,0,1", "1,-,0,1", "2,0,-,2", "1,3,3,-")),
        (v.V6, ("-,0,1", "2,-,1", "2,0,-")),
        (v.V9, v.V9_PARENTS),
    ],
    ids=["V1", "V2", "V3", "V4", "V6", "V9"],
)
def test_trees(view: NetworkView, parents: tuple[str, ...]) -> None:
    plan = NetStorm().plan(view)
    assert [tree.root for tree in plan.trees] == list(range(view.n))
    assert [tree.parents for tree in plan.trees] == [v.row(text) for text in parents]
    if view is not v.V6:
        assert all(tree.pull_parents is None for tree in plan.trees), "both directions alike: one tree"
    assert all(tree.pull_parents is None for tree in NetStorm(pull="reversed").plan(view).trees)


def test_v6_results_travel_down_the_fastest_paths_from_the_root() -> None:
    trees = NetStorm().plan(v.V6).trees
    assert [tree.pull_parents for tree in trees] == [v.row(text) for text in ("-,2,0", "1,-,0", "1,2,-")]


def test_pull_is_own_or_reversed() -> None:
    with pytest.raises(UsageError, match="own or pull: reversed"):
        NetStorm.from_options({"pull": "sideways"}, NAMES9)


@pytest.mark.parametrize(
    ("view", "level_costs"),
    [
        (v.V1, ("1/5", "1/10", "1/5")),
        (v.V2, ("1/2", "3/8", "3/8", "1/2")),
        (v.V3, ("1/2", "11/20", "3/5", "7/10", "7/10")),
        (v.V4, ("1/5", "1/5", "1/5", "1/5")),
        (v.V6, ("3/20", "3/20", "1/5")),
        (v.V9, tuple(f"{e}/100" for e in (4, 4, 3, 2, 3, 3, 3, 4, 4))),
    ],
    ids=["V1", "V2", "V3", "V4", "V6", "V9"],
)
def test_scores(view: NetworkView, level_costs: tuple[str, ...]) -> None:
    assert scores_of(view) == [1 / Fraction(cost) for cost in level_costs]
    total = sum(scores_of(view))
    shares = [tree.share for tree in NetStorm().plan(view).trees]
    assert shares == pytest.approx([float(score / total) for score in scores_of(view)], rel=1e-12)


def test_v5_scores_by_the_paths_from_the_root_not_by_the_tree() -> None:
    tree = NetStorm().plan(v.V5).trees[0]
    assert tree.parents == v.row("-,0,0,2,1,3")
    # The tree brings 5 up over 3 and 2 (Q = 1); the published code scores the path down, 0-1-4-5 (Q = 4/3).
    assert scores_of(v.V5)[0] == Fraction(3, 4)
    cost = sum(v.V5.cost(arc) for arc in pairwise(follow(tree.parents, 5)))
    assert cost == pytest.approx(1.0)


def test_v6_scores_of_an_asymmetric_network() -> None:
    assert scores_of(v.V6) == [Fraction(20, 3), Fraction(20, 3), Fraction(5)]


@pytest.mark.parametrize(
    ("view", "ranking"),
    [
        (v.V1, [{1}, {0, 2}]),
        (v.V2, [{1, 2}, {0, 3}]),
        (v.V3, [{0}, {1}, {2}, {3, 4}]),
        (v.V6, [{0, 1}, {2}]),
        (v.V9, [{3}, {2, 4, 5, 6}, {0, 1, 7, 8}]),
    ],
    ids=["V1", "V2", "V3", "V6", "V9"],
)
def test_ranking(view: NetworkView, ranking: list[set[int]]) -> None:
    scores = level_scores(view)
    count = 0
    for group in ranking:
        count += len(group)
        best = set().union(*ranking[: ranking.index(group) + 1])
        assert set(keep_roots(scores, count)) == best


def test_v3_and_v9_keep_the_best_roots() -> None:
    assert [tree.root for tree in NetStorm(3).plan(v.V3).trees] == [0, 1, 2]
    assert [tree.root for tree in NetStorm(5).plan(v.V9).trees] == [2, 3, 4, 5, 6]
    assert sum(tree.share for tree in NetStorm(5).plan(v.V9).trees) == pytest.approx(1)


def test_v4_drops_the_lowest_index_first_among_equals() -> None:
    assert [tree.root for tree in NetStorm(2).plan(v.V4).trees] == [2, 3]
    assert keep_roots([1.0, 1.0 - 1e-12, 2.0], 2) == [1, 2]
    assert keep_roots([1.0, 1.0 - 1e-6, 2.0], 2) == [0, 2]


def throughput(view: NetworkView) -> float:
    """Mbit/s that the shares reach in steady state: min over arcs of rate / (push and pull load)."""
    load: Counter[tuple[int, int]] = Counter()
    for tree in NetStorm().plan(view).trees:
        for site, parent in enumerate(tree.parents):
            if parent is not None:
                load[site, parent] += tree.share
                load[parent, site] += tree.share
    return min(view.rates[arc] / 1e6 / share for arc, share in load.items())


def test_steady_throughput_of_the_shares() -> None:
    assert throughput(v.V1) == pytest.approx(10)
    assert throughput(v.V9) == pytest.approx(3400 / 31)
    assert throughput(v.V11) == pytest.approx(15)


def published_policy_list(view: NetworkView, roots: int | None, site: int) -> list[float]:
    """List (C) of the published protocol: scores, then per root the parent (-2 at the root), children, -1."""
    plan = NetStorm(roots).plan(view)
    kept = {tree.root: tree for tree in plan.trees}
    flat: list[float] = [kept[r].score if r in kept else 0 for r in range(view.n)]
    for root in sorted(kept):
        parents = kept[root].parents
        parent = parents[site]
        flat.append(-2 if parent is None else parent)
        flat += [child for child in range(view.n) if parents[child] == site]
        flat.append(-1)
    return flat


def test_v13_policy_lists() -> None:
    assert published_policy_list(v.V1, None, 1) == pytest.approx([5, 10, 5, 0, 2, -1, -2, 0, 2, -1, 2, 0, -1])
    assert published_policy_list(v.V1, None, 0) == pytest.approx([5, 10, 5, -2, 1, -1, 1, -1, 1, -1])
    assert published_policy_list(v.V1, 1, 1) == pytest.approx([0, 10, 0, -2, 0, 2, -1])


def test_scores_are_in_megabits_per_second_whatever_the_scale() -> None:
    faster = NetworkView(3, {arc: rate * 1000 for arc, rate in v.V1.rates.items()})
    assert level_scores(faster) == pytest.approx([5_000, 10_000, 5_000])
    assert [t.share for t in NetStorm().plan(faster).trees] == pytest.approx([0.25, 0.5, 0.25])


def test_single_site() -> None:
    plan = NetStorm().plan(NetworkView(1, {}))
    assert [(t.root, t.share, t.score, t.parents) for t in plan.trees] == [(0, 1.0, 0.0, (None,))]


def test_unreachable_sites_are_named() -> None:
    view = NetworkView(
        4, {(0, 1): 1e6, (1, 0): 1e6, (2, 3): 1e6, (3, 2): 1e6, (1, 2): 0}, ("dc1", "dc2", "dc3", "dc4")
    )
    with pytest.raises(PlanError, match=r"no path to dc1 from dc3, dc4"):
        NetStorm().plan(view)
    one_way = NetworkView(2, {(0, 1): 1e6}, ("east", "west"))
    with pytest.raises(PlanError, match="no path to east from west"):
        NetStorm().plan(one_way)


@pytest.mark.parametrize("roots", [0, -1, 10, 2.5, "some", True])
def test_impossible_numbers_of_roots(roots: object) -> None:
    with pytest.raises(UsageError, match="cannot keep"):
        NetStorm.from_options({"roots": roots}, NAMES9)


def test_all_roots_by_default() -> None:
    assert NetStorm.from_options({}, NAMES9) == NetStorm.from_options({"roots": "all"}, NAMES9) == NetStorm()
    assert NetStorm.from_options({"roots": 9}, NAMES9).roots == 9


def test_scores_of_symmetric_networks_never_exceed_the_tree_depth_bound() -> None:
    """D(r) <= Q(r): the dearest path costs at most the sum of the dearest levels."""
    for view in (v.V1, v.V2, v.V3, v.V4, v.V5, v.V9):
        for root, score in enumerate(level_scores(view)):
            assert max(view.fastest[root].distance) <= 1 / score * (1 + 1e-9)
            assert math.isfinite(score)


def test_a_thousand_sites_are_planned_in_seconds() -> None:
    rng = random.Random(7)
    graph = nx.random_regular_graph(4, 1000, seed=7)
    assert nx.is_connected(graph)
    rates = {arc: rng.randint(20, 155) * 1e6 for u, v in graph.edges for arc in ((u, v), (v, u))}
    begun = time.process_time()
    plan = NetStorm().plan(NetworkView(1000, rates))
    assert time.process_time() - begun < 10
    assert len(plan.trees) == 1000


def test_random_paths_are_trees_over_links_and_change_with_seed_and_draw() -> None:
    plans = {}
    for seed, draw in ((0, 0), (0, 1), (1, 0), (0, 0)):
        plan = NetStorm.from_options({"paths": "random", "seed": seed}, NAMES9).plan(replace(v.V9, draw=draw))
        assert plan.scheduler == "netstorm-random"
        for tree in plan.trees:
            for site, (up, down) in enumerate(zip(tree.parents, tree.down_parents, strict=True)):
                assert up is None or (site, up) in v.V9.rates
                assert down is None or (down, site) in v.V9.rates
        assert plans.setdefault((seed, draw), plan) == plan
    assert len(set(plans.values())) == 3
    one = NetStorm.from_options({"paths": "random", "roots": 1, "pull": "reversed"}, NAMES9).plan(v.V9)
    assert len(one.trees) == 1 and one.trees[0].pull_parents is None
    line = NetworkView(3, {(0, 1): 1e6, (1, 0): 1e6, (1, 2): 1e6}, ("a", "b", "c"))
    with pytest.raises(PlanError, match="no tree of root a reaches c"):
        NetStorm(paths="random").plan(line)
    with pytest.raises(UsageError, match="has no paths 'fast'"):
        NetStorm.from_options({"paths": "fast"}, NAMES9)
