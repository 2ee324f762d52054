"""Plans and views as values: what they refuse, and the JSON shape."""

from __future__ import annotations

import pytest

from agents.planning.base import NetworkView, Plan, PlanError, Tree
from agents.planning.netstorm import NetStorm
from topologies.load import load_topology

from . import vectors as v


def test_json_shape() -> None:
    shape = NetStorm().plan(v.V1).to_dict(("dc1", "dc2", "dc3"))
    assert shape["schema"] == 1
    assert shape["scheduler"] == "netstorm"
    first = shape["roots"][0]
    assert set(first) == {"site", "score", "share", "parents"}
    assert first["site"] == "dc1"
    assert first["score"] == pytest.approx(5)
    assert first["share"] == pytest.approx(0.25)
    assert first["parents"] == {"dc1": None, "dc2": "dc1", "dc3": "dc2"}


def test_json_shape_of_a_separate_pull_tree() -> None:
    plan = Plan("own", (Tree(0, 1.0, 0.0, (None, 0, 1), (None, 2, 0)),))
    (entry,) = plan.to_dict(("a", "b", "c"))["roots"]
    assert entry["pull_parents"] == {"a": None, "b": "c", "c": "a"}


@pytest.mark.parametrize(
    ("root", "parents"),
    [
        (0, (None, 2, 1)),  # a loop beside the root
        (0, (None, 0, None)),  # a second root
        (0, (1, 0, 0)),  # the root has a parent
        (0, (None, 3, 0)),  # no such site
        (3, (None, 0, 0)),
    ],
)
def test_not_a_tree(root: int, parents: tuple[int | None, ...]) -> None:
    with pytest.raises(PlanError, match="push tree"):
        Tree(root, 1.0, 0.0, parents)


def test_pull_trees_are_checked_too() -> None:
    with pytest.raises(PlanError, match="pull tree"):
        Tree(0, 1.0, 0.0, (None, 0, 0), (None, 2, 1))
    with pytest.raises(PlanError, match="differ in their number"):
        Tree(0, 1.0, 0.0, (None, 0, 0), (None, 0))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_impossible_shares(share: float) -> None:
    with pytest.raises(PlanError, match="share"):
        Tree(0, share, 0.0, (None, 0))


def test_shares_sum_to_one() -> None:
    half = Tree(0, 0.5, 0.0, (None, 0))
    with pytest.raises(PlanError, match=r"sum to 0\.5"):
        Plan("own", (half,))
    with pytest.raises(PlanError, match="no tree"):
        Plan("own", ())
    with pytest.raises(PlanError, match="number of sites"):
        Plan("own", (half, Tree(0, 0.5, 0.0, (None, 0, 0))))
    with pytest.raises(PlanError, match="link order"):
        Plan("own", (half, half), link_order="random")  # type: ignore[arg-type]


def test_main_tree_is_the_one_of_highest_share() -> None:
    assert NetStorm().plan(v.V1).main_tree == 1
    assert NetStorm().plan(v.V11).main_tree == 0
    assert NetStorm().plan(v.V9).main_tree == 3


def test_view_of_a_topology() -> None:
    topology = load_topology("netstorm-9")
    view = NetworkView.from_topology(topology)
    assert view.n == 9
    assert view.names[0] == "dc1"
    assert view.rates == topology.rates()
    for src in range(9):
        for dst in range(9):
            if src != dst:  # the network's primary paths and the planner's fastest paths obey one tie rule
                assert view.relay(src, dst) == NetworkView(9, view.rates).relay(src, dst)


@pytest.mark.parametrize(
    ("n", "rates", "names", "message"),
    [
        (0, {}, (), "0 sites"),
        (2, {(0, 2): 1.0}, (), "0 -> 2"),
        (2, {(1, 1): 1.0}, (), "1 -> 1"),
        (2, {(0, 1): -1.0}, ("a", "b"), "a -> b has rate -1.0"),
        (2, {(0, 1): float("nan")}, (), "rate nan"),
        (2, {}, ("a",), "1 site names for 2 sites"),
    ],
)
def test_impossible_views(
    n: int, rates: dict[tuple[int, int], float], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        NetworkView(n, rates, names)


def test_trees_survive_plain_values() -> None:
    for tree in (*NetStorm().plan(v.V6).trees, Tree(0, 1.0, 0.5, (None, 0, 1), (None, 2, 0))):
        assert Tree.from_dict(tree.to_dict()) == tree
