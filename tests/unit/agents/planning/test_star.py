"""Stars: placement, relayed hops, shares."""

from __future__ import annotations

import pytest

from agents.planning.base import NetworkView, PlanError
from agents.planning.registry import get_scheduler
from agents.planning.star import best_server, modelled_time

from . import vectors as v

NAMES = ("dc1", "dc2", "dc3", "dc4", "dc5")


def plan(spec: object, view: NetworkView):  # type: ignore[no-untyped-def]
    return get_scheduler(spec, NAMES[: view.n]).plan(view)  # type: ignore[arg-type]


def test_first_server_with_relayed_hops() -> None:
    result = plan("star", v.V2)
    assert result.scheduler == "star-first"
    (tree,) = result.trees
    assert tree.parents == (None, 0, 0, 0)
    assert tree.share == 1
    assert tree.score == pytest.approx(1 / (1 / 8 + 1 / 4 + 1 / 8))


def test_hops_follow_the_fastest_paths() -> None:
    assert v.V1.relay(0, 2) == (0, 1, 2)
    assert v.V1.relay_cost(0, 2) == pytest.approx(0.2)


def test_modelled_time_counts_the_flows_of_shared_links() -> None:
    # Line 0-1-2-3: three flows share 1-0 in each direction, two share 2-1, one uses 3-2.
    assert modelled_time(v.V2, 0) == pytest.approx(max(3 / 8, 2 / 4, 1 / 8))
    assert modelled_time(v.V2, 1) == pytest.approx(max(1 / 8, 2 / 4, 1 / 8))
    # Four leaves of a star: the slowest leaf decides for the hub, and all four share the link of a leaf.
    assert modelled_time(v.V3, 0) == pytest.approx(1 / 2)
    assert modelled_time(v.V3, 4) == pytest.approx(4 / 2)


def test_modelled_time_adds_both_directions_on_one_arc() -> None:
    # 0 -> 1 goes over 2, 1 -> 0 is direct: with the server at 1, arc 0>2 carries 0's sum and the result to 2.
    view = v.directed(3, "0>2:10 2>1:10 1>0:10 2>0:1 0>1:1 1>2:1")
    assert view.relay(1, 2) == (1, 0, 2)
    assert modelled_time(view, 1) == pytest.approx(2 / 10)


def test_best_server() -> None:
    assert best_server(v.V3) == 0
    assert best_server(v.V1) == 1
    assert best_server(v.V4) == 0  # all equal: the lowest index
    assert best_server(v.V2) == 0  # the slow middle link decides for every site: the lowest index
    result = plan("star-best", v.V1)
    assert (result.scheduler, result.trees[0].root) == ("star-best", 1)


def test_all_servers_have_equal_shares() -> None:
    result = plan({"name": "star", "options": {"server": "all"}}, v.V3)
    assert result.scheduler == "star-all"
    assert [tree.root for tree in result.trees] == [0, 1, 2, 3, 4]
    assert all(tree.share == 0.2 for tree in result.trees)
    assert result.trees[3].parents == (3, 3, 3, None, 3)


def test_a_named_site() -> None:
    result = plan({"name": "star", "options": {"server": "dc3"}}, v.V2)
    assert (result.scheduler, result.trees[0].root) == ("star-dc3", 2)


def test_installed_primary_paths_are_used() -> None:
    """The network's paths come from declared rates; a plan from estimates still crosses those paths."""
    view = NetworkView(3, v.V1.rates, primary={(2, 0): (2, 0), (0, 2): (0, 2)})
    assert view.relay_cost(2, 0) == pytest.approx(1 / 4)
    assert view.relay(1, 0) == (1, 0)


def test_a_primary_path_over_a_dead_link_is_an_error() -> None:
    view = NetworkView(3, {**v.V1.rates, (2, 0): 0}, ("a", "b", "c"), {(2, 0): (2, 0)})
    with pytest.raises(PlanError, match="c -> a, which has no rate"):
        plan("star", view)


def test_unreachable_site() -> None:
    view = NetworkView(3, {(0, 1): 1e6, (1, 0): 1e6}, ("a", "b", "c"))
    with pytest.raises(PlanError, match="from c"):
        plan("star-all", view)


def test_single_site() -> None:
    for name in ("star-first", "star-best", "star-all"):
        (tree,) = plan(name, NetworkView(1, {})).trees
        assert (tree.root, tree.parents, tree.share, tree.score) == (0, (None,), 1.0, 0.0)
