"""Tensors to servers as MXNet's parameter server places them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chunks import place_keys, server_of_key, split_evenly
from agents.planning.registry import get_scheduler
from agents.sync.policy import Policy
from agents.sync.spec import CollectiveSpec, allreduce, barrier
from topologies.errors import UsageError

from ..planning import vectors as v


def test_small_tensors_go_by_their_key() -> None:
    assert [9973 % servers for servers in (2, 3, 4, 5, 7, 9)] == [1, 1, 1, 3, 5, 1]
    assert [server_of_key(key, 5) for key in range(5)] == [0, 3, 1, 4, 2]
    assert [server_of_key(key, 7) for key in range(7)] == [0, 5, 3, 1, 6, 4, 2]
    # Whatever their size: the largest of them all at one server.
    table = place_keys((7, 999_999, 1), 400_000, 5, 1_000_000)
    assert [(chunk.part, chunk.tree, chunk.size) for chunk in table] == [
        (0, 0, 7),
        *((1, 3, 400_000), (1, 3, 400_000), (1, 3, 199_999)),
        (2, 1, 1),
    ]


def test_large_tensors_are_split_over_all() -> None:
    assert split_evenly(1_000_003, 3) == (333_334, 333_335, 333_334)
    assert split_evenly(1_000_000, 9) == (111_111,) * 4 + (111_112,) + (111_111,) * 4
    table = place_keys((1_000_000,), 100_000, 9, 1_000_000)  # the bound itself is not below it
    per_server = Counter[int]()
    for chunk in table:
        per_server[chunk.tree] += chunk.size
    assert [per_server[tree] for tree in range(9)] == list(split_evenly(1_000_000, 9))
    assert [chunk.offset for chunk in table][:3] == [0, 100_000, 111_111]


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
    st.integers(1, 90),
    st.integers(1, 7),
    st.integers(0, 400),
    st.integers(0, 2**64 - 1),
)
def test_every_element_is_in_one_chunk(
    sizes: list[int], chunk_elements: int, servers: int, big_array: int, first_key: int
) -> None:
    table = place_keys(tuple(sizes), chunk_elements, servers, big_array, first_key)
    assert [chunk.index for chunk in table] == list(range(len(table)))
    at = [0] * len(sizes)
    for chunk in table:
        assert 0 < chunk.size <= chunk_elements
        assert chunk.offset == at[chunk.part]
        at[chunk.part] += chunk.size
    assert at == sizes


def test_star_all_places_keys() -> None:
    names = [f"dc{k + 1}" for k in range(3)]
    plan = get_scheduler("star-all", names).plan(v.V1)
    policy = Policy(1, 0, plan, 100)

    def servers(spec: CollectiveSpec) -> set[int]:
        return {chunk.tree for chunk in policy.chunk_table(spec)}

    assert servers(allreduce(1_000_000)) == {0, 1, 2}
    small = [allreduce(size) for size in range(1, 40)]
    assert all(len(servers(spec)) == 1 for spec in small), "whole at one server, smaller than a chunk or not"
    assert set.union(*map(servers, small)) == {0, 1, 2}
    assert servers(small[7]) == servers(allreduce(8)), "the same server each time"
    assert servers(barrier()) == {plan.main_tree}
    assert Policy.from_dict(policy.to_dict()) == policy

    spread = get_scheduler({"name": "star", "options": {"server": "all", "big_array": 0}}, names).plan(v.V1)
    assert {chunk.tree for chunk in Policy(1, 0, spread, 100).chunk_table(allreduce(30))} == {0, 1, 2}


def test_a_bound_is_a_number_of_elements() -> None:
    with pytest.raises(UsageError, match="big_array cannot be -1"):
        get_scheduler({"name": "star-all", "options": {"big_array": -1}}, ["a", "b"])
