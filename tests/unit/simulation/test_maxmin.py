"""Fair shares by their definition, under random arrivals, departures and changes of capacity."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.simulation.maxmin import FairShares, Share


def is_max_min(
    capacity: Sequence[float],
    routes: Sequence[Sequence[int]],
    rates: Sequence[float],
    tolerance: float = 1e-6,
) -> bool:
    """The rates fit the links, and every flow crosses a full link on which no flow is faster."""
    used = [0.0] * len(capacity)
    fastest = [0.0] * len(capacity)
    for route, rate in zip(routes, rates, strict=True):
        for link in set(route):
            used[link] += rate
            fastest[link] = max(fastest[link], rate)
    if any(u > c * (1 + tolerance) + tolerance for u, c in zip(used, capacity, strict=True)):
        return False
    return all(
        any(
            used[link] >= capacity[link] * (1 - tolerance) - tolerance
            and rate >= fastest[link] - tolerance * (capacity[link] + 1)
            for link in route
        )
        for route, rate in zip(routes, rates, strict=True)
    )


def test_one_link_is_halved() -> None:
    shares = FairShares([10.0])
    first, second = shares.add([0]), shares.add([0])
    shares.update()
    assert (first.rate, second.rate) == (5.0, 5.0)


def test_the_textbook_line() -> None:
    """A long flow over links of 10 and 6, a short one on each: 3 for the long one, 7 and 3 for the short
    ones.
    """
    shares = FairShares([10.0, 6.0])
    long, first, second = shares.add([0, 1]), shares.add([0]), shares.add([1])
    shares.update()
    assert (long.rate, first.rate, second.rate) == (3.0, 7.0, 3.0)
    shares.remove(second)
    assert {share.number for share in shares.update()} == {long.number, first.number}
    assert (long.rate, first.rate) == (5.0, 5.0)


def test_a_higher_class_goes_first() -> None:
    shares = FairShares([10.0, 4.0])
    high, low, lowest = shares.add([0, 1], 7), shares.add([0], 3), shares.add([0], 0)
    shares.update()
    assert (high.rate, low.rate, lowest.rate) == (4.0, 6.0, 0.0)
    shares.remove(low, 3)
    shares.update()
    assert (high.rate, lowest.rate) == (4.0, 6.0)


def test_a_link_without_capacity_stops_its_flows() -> None:
    shares = FairShares([10.0])
    share = shares.add([0])
    shares.update()
    shares.set_capacity(0, 0.0)
    assert shares.update() == [share]
    assert share.rate == 0.0
    shares.set_capacity(0, 2.0)
    shares.update()
    assert share.rate == 2.0


def test_a_flow_needs_a_link() -> None:
    with pytest.raises(ValueError, match="at least one link"):
        FairShares([1.0]).add([])


def test_an_update_touches_only_what_the_change_reaches() -> None:
    shares = FairShares([10.0] * 100)
    for link in range(100):
        shares.add([link])
    shares.update()
    before = shares.solved
    extra = shares.add([42])
    changed = shares.update()
    assert shares.solved - before <= 3
    assert len(changed) == 2
    assert extra.rate == 5.0


operations = st.lists(
    st.tuples(st.integers(0, 9), st.randoms(use_true_random=False)), min_size=1, max_size=60
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 10), st.integers(0, 3), operations)
def test_always_max_min_in_every_class(
    n_links: int, n_classes: int, steps: list[tuple[int, random.Random]]
) -> None:
    shares: FairShares | None = None
    live: list[tuple[Share, int]] = []
    for kind, rng in steps:
        if shares is None:
            shares = FairShares([rng.choice([5.0, 10.0, 20.0, rng.uniform(1, 100)]) for _ in range(n_links)])
        if kind < 5 or not live:
            route = rng.sample(range(n_links), rng.randint(1, min(n_links, 4)))
            cls = rng.randint(0, n_classes)
            live.append((shares.add(route, cls), cls))
        elif kind < 8:
            shares.remove(*live.pop(rng.randrange(len(live))))
        else:
            shares.set_capacity(rng.randrange(n_links), rng.choice([0.0, rng.uniform(1, 100)]))
        if kind == 9 or rng.random() < 0.6:
            shares.update()
            left = list(shares.capacity)
            for cls in range(n_classes, -1, -1):
                members = [share for share, c in live if c == cls]
                assert is_max_min(left, [s.route for s in members], [s.rate for s in members])
                for share in members:
                    for link in share.route:
                        left[link] = max(left[link] - share.rate, 0.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_history_does_not_matter(seed: int) -> None:
    """The same flows give the same rates, however they came about."""
    rng = random.Random(seed)
    links = rng.randint(2, 10)
    shares = FairShares([rng.uniform(1, 100) for _ in range(links)])
    live: list[Share] = []
    for _ in range(80):
        if rng.random() < 0.6 or not live:
            live.append(shares.add(rng.sample(range(links), rng.randint(1, min(links, 4)))))
        else:
            shares.remove(live.pop(rng.randrange(len(live))))
        shares.update()
    fresh = FairShares(shares.capacity)
    again = [fresh.add(share.route) for share in live]
    fresh.update()
    assert [s.rate for s in live] == pytest.approx([s.rate for s in again], rel=1e-6)
