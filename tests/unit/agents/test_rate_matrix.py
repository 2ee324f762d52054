"""The coordinator's view of the rates: reports, age, the published prior and the rules for planning anew."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from agents.options import AwarenessOptions
from agents.planning.base import NetworkView
from agents.planning.registry import get_scheduler
from agents.rate_matrix import (
    RateMatrix,
    glibc_rand,
    make_matrix,
    mean_change,
    predicted_gain,
    published_prior,
)
from topologies.load import load_topology


def both_ways(rates: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return rates | {(v, u): rate for (u, v), rate in rates.items()}


def test_vector_v12_planning_anew() -> None:
    before = {(0, 1): 4.0, (1, 0): 8.0, (1, 2): 10.0, (2, 1): 7.0}
    after = {(0, 1): 5.0, (1, 0): 6.0, (1, 2): 9.0, (2, 1): 7.0}
    assert mean_change(before, after) == pytest.approx(0.2)  # the mean of those that changed
    assert mean_change(before, after) > 0.15
    assert mean_change(before, before) == 0.0
    assert mean_change({(0, 1): 0.0}, {(0, 1): 1.0}) == math.inf


def test_the_published_prior_is_what_the_published_scheduler_draws() -> None:
    expected = {
        (0, 1): 78.8, (0, 2): 49.8, (1, 2): 86.4, (1, 4): 17.9, (2, 3): 74.5, (3, 4): 14.9, (3, 5): 3.7,
        (4, 6): 36.7, (5, 6): 73.0, (5, 7): 57.2, (5, 8): 76.7, (6, 7): 56.9, (7, 8): 39.1,
    }  # fmt: skip
    prior = published_prior(load_topology("netstorm-9").rates())
    assert prior == pytest.approx(both_ways({link: 8e6 * value for link, value in expected.items()}))
    assert list(islice(glibc_rand(1), 3)) == [1804289383, 846930886, 1681692777]


def test_an_estimate_stays_or_goes_back_to_an_optimistic_prior() -> None:
    stays = RateMatrix({(0, 1): 100.0, (1, 0): 100.0})
    decays = RateMatrix({(0, 1): 100.0, (1, 0): 100.0}, decay_s=10.0)
    for matrix in (stays, decays):
        matrix.report((0, 1), 20.0, now=5.0)
        assert matrix.rates(5.0) == {(0, 1): 20.0, (1, 0): 100.0}
    assert stays.rates(1e6)[0, 1] == 20.0
    assert decays.rates(15.0)[0, 1] == pytest.approx(100 - 80 / math.e)
    assert decays.rates(1e6)[0, 1] == pytest.approx(100.0)
    decays.report((1, 0), 150.0, now=5.0)
    assert decays.rates(1e6)[1, 0] == 150.0


def test_a_measured_path_only_raises_its_links() -> None:
    matrix = RateMatrix({(0, 1): 50.0, (1, 2): 100.0})
    matrix.report((0, 1, 2), 80.0, now=0.0)
    assert matrix.rates(0.0) == {(0, 1): 80.0, (1, 2): 100.0}
    matrix.report((0, 1, 2), 10.0, now=1.0)
    assert matrix.rates(1.0) == {(0, 1): 80.0, (1, 2): 100.0}
    matrix.report((2, 0), 10.0, now=1.0)  # no link
    assert set(matrix.rates(1.0)) == {(0, 1), (1, 2)}


def test_options_choose_prior_and_decay() -> None:
    declared = {(0, 1): 1e6, (1, 0): 1e6}
    published = make_matrix(AwarenessOptions(estimator="published", prior="published"), declared)
    assert published.rates(0.0)[0, 1] != 1e6
    published.report((0, 1), 5e5, 0.0)
    assert published.rates(1e9)[0, 1] == 5e5
    unbiased = make_matrix(AwarenessOptions(estimator="unbiased"), declared)
    unbiased.report((0, 1), 5e5, 0.0)
    assert unbiased.rates(1e9)[0, 1] == pytest.approx(1e6)


def test_the_gain_of_a_plan_is_what_it_carries_on_the_network_as_it_is_now() -> None:
    scheduler = get_scheduler("netstorm", ("a", "b", "c"))
    even = NetworkView(3, both_ways({(0, 1): 1e8, (1, 2): 1e8, (0, 2): 1e8}))
    slow = NetworkView(3, both_ways({(0, 1): 1e8, (1, 2): 1e8, (0, 2): 1e7}))
    old, new = scheduler.plan(even), scheduler.plan(slow)
    assert predicted_gain(old, old, slow) == 0.0
    assert predicted_gain(old, new, slow) > 2
    assert predicted_gain(new, old, slow) < -0.5
    gone = NetworkView(3, both_ways({(0, 1): 1e8, (1, 2): 1e8}))
    assert predicted_gain(old, scheduler.plan(gone), gone) > 0  # the network carries the old hops round about
