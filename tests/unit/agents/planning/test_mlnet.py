"""The complete k-ary tree that does not look at the network."""

from __future__ import annotations

import re

import pytest

from agents.planning.base import NetworkView
from agents.planning.mlnet import MlNet, complete_tree
from agents.planning.registry import get_scheduler
from topologies.errors import UsageError

from . import vectors as v

NAMES = tuple(f"dc{k + 1}" for k in range(9))


def children(parents: tuple[int | None, ...]) -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for site, parent in enumerate(parents):
        if parent is not None:
            below.setdefault(parent, []).append(site)
    return below


def depth(parents: tuple[int | None, ...]) -> int:
    def of(site: int) -> int:
        parent = parents[site]
        return 0 if parent is None else 1 + of(parent)

    return max(of(site) for site in range(len(parents)))


def test_nine_sites() -> None:
    binary, ternary = complete_tree(range(9), 2), complete_tree(range(9), 3)
    assert children(binary) == {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]}
    assert children(ternary) == {0: [1, 2, 3], 1: [4, 5, 6], 2: [7, 8]}
    assert (depth(binary), depth(ternary)) == (3, 2)


def test_depths() -> None:
    sizes = (1, 2, 3, 4, 7, 8, 9, 15, 16)
    assert [depth(complete_tree(range(n), 2)) for n in sizes] == [0, 1, 1, 2, 2, 3, 3, 3, 4]


@pytest.mark.parametrize(
    ("n", "k", "units"), [(7, 2, 4), (9, 2, 4), (9, 3, 4), (10, 2, 4), (10, 3, 5), (13, 3, 6), (10, 9, 9)]
)
def test_unit_time_of_serial_receives(n: int, k: int, units: int) -> None:
    """Every transfer takes one unit and a site takes in one child at a time, in the order they finish."""
    below = children(complete_tree(range(n), k))

    def ready(site: int) -> int:
        time = 0
        for child_ready in sorted(ready(child) for child in below.get(site, [])):
            time = max(time, child_ready) + 1
        return time

    assert ready(0) == units


def test_the_default_is_one_binary_tree_by_rank() -> None:
    plan = MlNet().plan(v.V9)
    (tree,) = plan.trees
    assert (plan.scheduler, tree.root, tree.share) == ("mlnet", 0, 1.0)
    assert tree.parents == complete_tree(range(9), 2)
    # A link costs 0.01: the levels' dearest hops are 0-1 (one link), 2-6 (three) and 3-7 (two).
    assert tree.score == pytest.approx(1 / (0.01 + 0.03 + 0.02))


def test_a_seed_orders_the_sites_and_only_it_does() -> None:
    view = NetworkView(9, {arc: rate * 3 for arc, rate in v.V9.rates.items()})
    one = MlNet(seed=1).plan(v.V9).trees[0]
    assert one.parents == MlNet(seed=1).plan(view).trees[0].parents
    assert one.parents != MlNet(seed=2).plan(v.V9).trees[0].parents
    assert depth(one.parents) == 3


def test_every_root() -> None:
    plan = get_scheduler({"name": "mlnet", "options": {"k": 3, "roots": "all", "seed": 4}}, NAMES).plan(v.V9)
    assert plan.scheduler == "mlnet-k3-seed4-all"
    assert sorted(tree.root for tree in plan.trees) == list(range(9))
    first, second = plan.trees[0].parents, plan.trees[1].parents
    assert children(first)[plan.trees[0].root][0] == plan.trees[1].root
    assert depth(second) == 2


def test_a_single_site() -> None:
    (tree,) = MlNet().plan(NetworkView(1, {})).trees
    assert (tree.parents, tree.score) == ((None,), 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k cannot be 0 (a whole number from 1 on)"),
        ({"k": True}, "k cannot be True"),
        ({"seed": "x"}, "seed cannot be 'x'"),
        ({"roots": "al"}, "did you mean all"),
    ],
)
def test_what_it_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        get_scheduler({"name": "mlnet", "options": options}, NAMES)
