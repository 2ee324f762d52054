"""The model of gloo's ring, and where gloo is refused."""

from __future__ import annotations

import pytest

from agents.planning.base import NetworkView
from agents.planning.registry import (
    get_scheduler,
    library_names,
    library_of,
    scheduler_names,
    scheduler_style,
    scheduler_summary,
)
from agents.planning.timing import arc_loads
from topologies.errors import UsageError

from . import vectors as v

SITES = ("dc1", "dc2", "dc3")


def test_rank_r_sends_to_rank_r_minus_1() -> None:
    trees = get_scheduler("gloo", SITES).plan(v.V11).trees
    # gloo/allreduce.cc: sendRank is rank - 1. What rank 0 holds in the end, ranks 2 and 1 have summed before it.
    assert trees[0].root == 0
    assert trees[0].parents == v.row("-,0,1")
    assert trees[0].pull_parents == v.row("-,2,0")


@pytest.mark.parametrize("n", [2, 5, 9])
def test_every_hop_of_the_ring_carries_2_parts_of_n(n: int) -> None:
    view = NetworkView(n, {(u, w): 1e8 for u in range(n) for w in range(n) if u != w})
    names = [f"dc{k + 1}" for k in range(n)]
    loads = arc_loads(get_scheduler("gloo", names).plan(view).trees, view)
    assert loads == {(k, (k - 1) % n): pytest.approx(2 * (n - 1) / n) for k in range(n)}


def test_it_is_a_name_but_none_of_the_agents_schedulers() -> None:
    assert library_names() == ("gloo",)
    assert "gloo" not in scheduler_names()
    assert (library_of("gloo"), library_of({"name": "netstorm"}), library_of("nonesuch")) == ("gloo", "", "")
    assert scheduler_summary("gloo")
    assert scheduler_style("gloo") not in [scheduler_style(name) for name in scheduler_names()]
    # What orders the agents' chunks means nothing to gloo.
    with pytest.raises(UsageError, match="gloo has no option 'link_order'"):
        get_scheduler({"name": "gloo", "options": {"link_order": "slack"}}, SITES)
    with pytest.raises(UsageError, match="unknown scheduler 'glo'") as caught:
        get_scheduler("glo", SITES)
    assert "gloo" in caught.value.hint
