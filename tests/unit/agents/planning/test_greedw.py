"""GreedW's trees and the split of batches."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.planning.base import NetworkView, Parents
from agents.planning.batches import finish_time, next_batches, split_batch
from agents.planning.greedw import (
    Costs,
    GreedW,
    aggregation_time,
    best_of_all,
    candidates,
    costs_of,
    earliest_completion,
    earliest_merge,
    prim,
    shortest_paths,
)
from agents.planning.registry import get_scheduler
from topologies.errors import UsageError

from . import vectors as v


def costs(rows: str, ready: tuple[float, ...] = (), merge: float = 0.0) -> Costs:
    link = tuple(tuple(float(x) for x in row.split()) for row in rows.split("/"))
    return Costs(link, ready or (0.0,) * len(link), merge)


FOUR = costs("0 1 4 9 / 2 0 5 9 / 4 5 0 1 / 9 9 3 0")


def every_tree(n: int) -> list[Parents]:
    trees: list[Parents] = []
    for root in range(n):
        others = [[p for p in range(n) if p != site] if site != root else [None] for site in range(n)]
        for parents in itertools.product(*others):
            reached = {root}
            for _ in range(n):
                reached |= {site for site in range(n) if parents[site] in reached}
            if len(reached) == n:
                trees.append(parents)
    return trees


# ---- trees


def test_the_time_of_a_tree_by_hand() -> None:
    # 0 -> 1 takes 1, 3 -> 2 takes 3; 2 -> 1 (5) after both: 3 + 5.
    assert aggregation_time(FOUR, (1, None, 1, 2)) == 8
    # Star at 1: its children 0, 2, 3 all ready at 0, one after the other: 1 + 5 + 9.
    assert aggregation_time(FOUR, (1, None, 1, 1)) == 15
    late = Costs(FOUR.link, (10.0, 0.0, 0.0, 0.0), 0.5)
    # With 0 late, 1 takes in 2 (3 + 0.5, then 5 + 0.5) before it: max(9, 10) + 1 + 0.5.
    assert aggregation_time(late, (1, None, 1, 2)) == 11.5


def test_earliest_merge_by_hand() -> None:
    # 0 -> 1 at 1 (tied with 2 -> 3 at 1: indexes), then 2 -> 3 at 1, then 1 -> 3 or 3 -> 1 at 1 + 9: 1 -> 3.
    assert earliest_merge(FOUR) == (1, 3, 3, None)
    assert aggregation_time(FOUR, earliest_merge(FOUR)) == 10


def test_ties_take_the_smaller_link_then_the_indexes() -> None:
    # 1 -> 0 ends at 4 + 1, 0 -> 1 at 4 + 1 as well, 2 -> 0 at 0 + 5: the links of 1 are smaller.
    tied = costs("0 1 9 / 1 0 9 / 5 9 0", (0.0, 4.0, 0.0))
    assert earliest_merge(tied)[0] == 1


def test_prim_and_shortest_paths_differ() -> None:
    line = costs("0 3 9 / 3 0 2 / 4 2 0")
    assert prim(line, 0) == (None, 0, 1)
    assert shortest_paths(line, 0) == (None, 0, 0)


def test_reversed_broadcast() -> None:
    unit = costs(" / ".join(" ".join("0" if u == w else "1" for w in range(8)) for u in range(8)))
    assert aggregation_time(unit, earliest_completion(unit, 0)) == 3  # binomial: log2 of 8
    assert aggregation_time(unit, (None, *[0] * 7)) == 7


@pytest.mark.parametrize("seed", range(40))
def test_the_portfolio_is_never_worse_than_its_members_and_near_the_best_tree(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(2, 5)
    link = tuple(tuple(0.0 if u == w else rng.uniform(1, 10) for w in range(n)) for u in range(n))
    it = Costs(link, tuple(rng.choice((0.0, rng.uniform(0, 10))) for _ in range(n)), rng.choice((0.0, 0.3)))
    chosen = aggregation_time(it, best_of_all(it))
    assert chosen == min(aggregation_time(it, tree) for tree in candidates(it))
    best = min(aggregation_time(it, tree) for tree in every_tree(n))
    assert best * (1 - 1e-9) <= chosen <= 1.5 * best


def test_the_literal_method_can_lose_to_a_star() -> None:
    rng = random.Random(0)
    worse = 0
    for _ in range(50):
        link = tuple(tuple(0.0 if u == w else rng.uniform(1, 10) for w in range(5)) for u in range(5))
        it = Costs(link, tuple(rng.uniform(0, 10) for _ in range(5)))
        stars = [tuple(None if x == root else root for x in range(5)) for root in range(5)]
        literal = aggregation_time(it, earliest_merge(it))
        worse += literal > min(aggregation_time(it, star) for star in stars)
        assert literal >= aggregation_time(it, best_of_all(it))
    assert worse


def test_costs_of_a_network() -> None:
    line = NetworkView(
        3,
        v.undirected(3, "0-1:10 1-2:5").rates,
        delays={(1, 2): 0.25},
        model_bits=1e7,
        ready_s=(0.0, 1.0, 2.0),
    )
    it = costs_of(line, 0.1)
    assert it.link[0] == pytest.approx((0.0, 1.0, 2.25))  # the slowest link of the way counts, 10 / 5
    assert it.link[2] == pytest.approx((2.0, 2.0, 0.0))
    assert (it.ready, it.merge) == ((0.0, 1.0, 2.0), 0.1)


def test_plans_follow_the_rates() -> None:
    plan = GreedW().plan(v.V3)
    assert (plan.scheduler, len(plan.trees)) == ("greedw", 1)
    assert plan.trees[0].score > 0
    slowed = NetworkView(9, v.V9.rates | {(0, 1): 1e6, (1, 0): 1e6})
    assert GreedW().plan(slowed).trees[0].parents[0] != 1
    literal = get_scheduler({"name": "greedw", "options": {"method": "literal"}}, ("a",) * 9)
    assert literal.plan(v.V9).scheduler == "greedw-literal"
    assert GreedW().plan(NetworkView(1, {})).trees[0].parents == (None,)
    with pytest.raises(UsageError, match="no method 'litteral'"):
        get_scheduler({"name": "greedw", "options": {"method": "litteral"}}, ("a",))


# ---- batches


def test_splits_by_hand() -> None:
    assert finish_time(120, (1, 2, 4)) == pytest.approx(480 / 7)
    assert split_batch(120, (1, 2, 4)) == (69, 34, 17)
    assert finish_time(120, (1, 2, 4), (10, 4, 2)) == pytest.approx(530 / 7)
    assert split_batch(120, (1, 2, 4), (10, 4, 2)) == (66, 36, 18)
    assert finish_time(120, (1, 2, 12), least=16) == pytest.approx(208 / 3)
    assert split_batch(120, (1, 2, 12), least=16) == (69, 35, 16)


def test_proportional_from_measured_times() -> None:
    assert next_batches((40, 40, 40), (40, 80, 160), step=1.0) == (69, 34, 17)
    assert next_batches((40, 40, 40), (40, 80, 160)) == (50, 40, 30)  # a quarter a round at most
    assert next_batches((40, 40, 40), (100, 98, 96)) == (40, 40, 40)  # within the dead band


def test_one_site_four_times_slower_settles() -> None:
    batches = (32,) * 9
    for _ in range(20):
        seconds = [b * (4.0 if site == 4 else 1.0) for site, b in enumerate(batches)]
        batches = next_batches(batches, seconds)
    assert sum(batches) == 288
    assert batches[4] in (8, 9)
    seconds = [b * (4.0 if site == 4 else 1.0) for site, b in enumerate(batches)]
    assert (max(seconds) - min(seconds)) / max(seconds) < 0.1


@given(
    st.integers(0, 2000),
    st.lists(
        st.tuples(
            st.floats(0.01, 50),
            st.floats(0, 100),
            st.integers(0, 40),
            st.one_of(st.none(), st.integers(40, 300)),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_sums_are_exact_and_within_limits(
    total: int, workers: list[tuple[float, float, int, int | None]]
) -> None:
    c, m, low, high = ([w[k] for w in workers] for k in range(4))
    most = [math.inf if value is None else value for value in high]
    if not sum(low) <= total <= sum(most):
        with pytest.raises(UsageError, match="cannot share"):
            split_batch(total, c, m, low, most)
        return
    batches = split_batch(total, c, m, low, most)
    assert sum(batches) == total
    assert all(a <= b <= z for a, b, z in zip(low, batches, most, strict=True))
    time = finish_time(total, c, m, low, most)
    for b, ci, mi, a, z in zip(batches, c, m, low, most, strict=True):
        exact = min(max((time - mi) / ci, a), z)
        assert abs(b - exact) <= 1 + 1e-6 * total


def test_what_cannot_be_split() -> None:
    for bad in ({"seconds_per_sample": ()}, {"seconds_per_sample": (0.0,)}):
        with pytest.raises(UsageError):
            split_batch(10, **bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limits"):
        split_batch(10, (1, 1), least=(1,))


def test_no_time_at_all_leaves_batches_as_they_are() -> None:
    assert next_batches((4, 8), (0.0, 0.0)) == (4, 8)
