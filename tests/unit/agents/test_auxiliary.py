"""When a chunk takes another path, and which paths have something to spare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.auxiliary import choose_path, spare_detours
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan, Tree
from topologies.load import load_topology
from topologies.paths import path_sets

THRESHOLD = AuxiliaryOptions(rule="threshold")


def choose(
    options: AuxiliaryOptions, own: int, hops: list[int], queues: dict[int, int], **more: object
) -> int:
    return choose_path(options, own, hops, lambda hop: queues.get(hop, 0), **more)  # type: ignore[arg-type]


def test_published_rule() -> None:
    hops = [1, 2, 3]
    assert choose(THRESHOLD, 0, hops, {1: 2}) == 0  # not more than 2 L
    assert choose(THRESHOLD, 0, hops, {1: 3}) == 1
    assert choose(THRESHOLD, 0, hops, {1: 3, 2: 1}) == 2  # fewer than L must wait there
    assert choose(THRESHOLD, 0, hops, {1: 3, 2: 1, 3: 1}) == 0
    assert choose(THRESHOLD, 1, hops, {2: 9}) == 0  # the hop's own path need not be number 0
    assert choose(AuxiliaryOptions(rule="threshold", limit=4), 0, hops, {1: 9, 2: 3}) == 1
    assert choose(AuxiliaryOptions(rule="threshold", limit=4), 0, hops, {1: 8}) == 0
    assert choose(AuxiliaryOptions(), 0, hops, {1: 99}) == 0
    assert choose(THRESHOLD, 0, [1], {1: 99}) == 0
    assert choose(THRESHOLD, 5, hops, {1: 99}) == 5  # a path that the network does not have is the primary's
    assert choose(AuxiliaryOptions(rule="capacity"), 0, hops, {1: 99}, allowed=()) == 0
    assert choose(AuxiliaryOptions(rule="capacity"), 0, hops, {1: 99}, allowed=(2,)) == 2


@given(
    st.integers(1, 5),
    st.integers(0, 3),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.integers(0, 20), min_size=4, max_size=4),
)
def test_a_detour_always_relieves_a_busy_hop(
    limit: int, own: int, hops: list[int], lengths: list[int]
) -> None:
    options = AuxiliaryOptions(rule="threshold", limit=limit)
    chosen = choose_path(options, own, hops, lengths.__getitem__)
    if chosen != own:
        assert lengths[hops[own]] > 2 * limit > lengths[hops[chosen]] * 2


def test_random_takes_any_path_of_the_pair_that_is_allowed() -> None:
    options = AuxiliaryOptions(rule="random")
    assert {choose(options, 0, [1, 2, 3], {}, draw=lambda n, k=k: k) for k in range(3)} == {0, 1, 2}
    seen = {choose(options, 0, [1, 2, 3], {}, draw=lambda n, k=k: k % n, allowed=(2,)) for k in range(3)}
    assert seen == {0, 2}
    assert choose(options, 0, [1], {}, draw=lambda n: n - 1) == 0


def test_paths_with_something_to_spare() -> None:
    paths = path_sets(load_topology("triangle"))
    rates = {(u, v): 1e8 for u in range(3) for v in range(3) if u != v}
    # One tree along 0 - 1 - 2 at the rate of its links: only 0 - 2 is free.
    plan = Plan("line", (Tree(1, 1.0, 1.0, (1, None, 1)),))
    free = spare_detours(plan, NetworkView(3, rates), paths, 0.25)
    assert {(src, dst) for src, dst, _ in free} == {(0, 2), (2, 0)}
    assert all(paths[src, dst][number] == (src, dst) for src, dst, number in free)
    # With a slow link in the tree the fast one has room, and so have the detours over it.
    slow = NetworkView(3, rates | {(0, 1): 2e7, (1, 0): 2e7})
    free = spare_detours(plan, slow, paths, 0.25)
    assert (0, 1, 1) in free and paths[0, 1][1] == (0, 2, 1)
    assert not any(paths[src, dst][number] == (src, dst) for src, dst, number in free if {src, dst} == {0, 1})
    assert spare_detours(plan, slow, paths, 1.0) == {
        t for t in free if paths[t[0], t[1]][t[2]] in ((0, 2), (2, 0))
    }


def test_options_take_one_word_and_yaml_off() -> None:
    assert AuxiliaryOptions.model_validate("threshold").rule == "threshold"
    assert AuxiliaryOptions.model_validate(False).rule == "off"
    assert AwarenessOptions.model_validate({"estimator": False}).on is False
    assert AwarenessOptions.model_validate("unbiased").replanning == "gain"
    assert AwarenessOptions.model_validate("published").replanning == "change"
    published = AwarenessOptions.model_validate("published")
    assert (published.check_period_s, published.update_rate, published.report_rate) == (5.0, 0.0, 0.0)
    assert (published.window, published.min_message_bytes) == (4, 2_000_000)
    with pytest.raises(ValueError, match="estimator"):
        AwarenessOptions.model_validate("psychic")
    with pytest.raises(ValueError, match="limit"):
        AuxiliaryOptions.model_validate({"rule": "threshold", "limit": 0})
