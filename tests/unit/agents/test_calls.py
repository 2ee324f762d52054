"""From workers' calls to parts and places, without any agent: one process plays all sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.calls import Call, LocalCollective, Ranks, call_from_header
from agents.chunks import on_one_tree
from agents.sync.payload import combine_arrays
from topologies.errors import StormbedError, UsageError

KINDS = ("allreduce", "reduce", "broadcast", "allgather", "gather", "scatter")


def arrays_of(call: Call, rank: int, world: int) -> tuple[Any, Any]:
    data = np.arange(call.data_elements(), dtype=call.dtype) + 100 * rank
    table = np.zeros(call.table_elements(rank, world), call.dtype)
    if call.kind == "scatter" and rank == call.peer:
        table[:] = np.arange(table.size) + 7
    return data, table


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.integers(0, 50),
    st.integers(1, 20),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_rank_gets_its_result_whoever_is_where(
    workers: list[int], kind: str, elements: int, chunk: int, data: st.DataObject
) -> None:
    ranks = Ranks.of(workers)
    peer = None if kind in ("allreduce", "allgather") else data.draw(st.integers(0, ranks.world - 1))
    call = Call(kind, "sum" if kind in ("allreduce", "reduce") else None, "int64", elements, peer)
    given_arrays = {rank: arrays_of(call, rank, ranks.world) for rank in range(ranks.world)}
    held = {rank: (values.copy(), table.copy()) for rank, (values, table) in given_arrays.items()}
    sites = [LocalCollective(0, site, ranks, len(workers)) for site in range(len(workers))]
    for rank, (values, table) in held.items():
        sites[ranks.site[rank]].add(rank, call, values, table)
    specs = [site.arrange() for site in sites]
    assert len({spec.digest for spec in specs}) == 1
    for site in sites:
        steps = len(list(site.prepare()))
        assert site.needs_preparation or steps == 0
    for piece in on_one_tree(tuple(part.elements for part in specs[0].parts), chunk, 0):
        part = specs[0].parts[piece.part]
        givers = [k for k in range(len(sites)) if part.contributors is None or k in part.contributors]
        assert all(piece.part in sites[k].own_parts for k in givers)
        total = sites[givers[0]].source(piece).array.copy()
        for other in givers[1:]:
            total = combine_arrays("sum", total, sites[other].source(piece).array)
        for k, site in enumerate(sites):
            if part.targets is None or k in part.targets:
                site.deliver(piece, total)

    inputs = {rank: values for rank, (values, _) in given_arrays.items()}
    for rank, (values, table) in held.items():
        if kind == "allreduce" or (kind == "reduce" and rank == peer):
            assert np.array_equal(values, sum(inputs.values()))
        elif kind == "broadcast":
            assert np.array_equal(values, inputs[peer])
        elif kind == "allgather" or (kind == "gather" and rank == peer):
            assert np.array_equal(table, np.concatenate([inputs[r] for r in range(ranks.world)]))
        elif kind == "scatter":
            assert np.array_equal(values, given_arrays[peer][1][rank * elements : (rank + 1) * elements])


def test_ranks_follow_sites_and_then_workers() -> None:
    ranks = Ranks.of([2, 1, 3])
    assert ranks.site == (0, 0, 1, 2, 2, 2) and ranks.worker == (0, 1, 0, 0, 1, 2)
    assert ranks.at(2) == (3, 4, 5) and ranks.world == 6


def test_a_rank_that_calls_something_else_is_named() -> None:
    local = LocalCollective(4, 0, Ranks.of([2]), 1)
    nothing = np.empty(0)
    local.add(0, Call("allreduce", "sum", "float32", 5, None), np.zeros(5, np.float32), nothing)
    assert local.missing == (1,)
    with pytest.raises(
        UsageError, match=r"rank 1 called broadcast float32 \[5\] \(from rank 0\) as collective 4"
    ):
        local.add(1, Call("broadcast", None, "float32", 5, 0), np.zeros(5, np.float32), nothing)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"call": 5, "dtype": "int8", "elements": 1}, "not a call"),
        ({"call": "allreduce", "op": "sum", "dtype": "int8", "elements": -1}, "not a call"),
        ({"call": "allreduce", "op": "sum", "dtype": "int8", "elements": 1, "peer": "x"}, "not a call"),
        ({"call": "allreduce", "op": "sum", "dtype": "float7", "elements": 1}, "float7"),
    ],
)
def test_headers_that_are_no_calls(header: dict[str, Any], words: str) -> None:
    with pytest.raises(StormbedError, match=words):
        call_from_header(header)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("allreduce", None, "int8", 1, None), "allreduce without an operator"),
        (Call("broadcast", None, "int8", 1, 6), "broadcast names rank 6"),
        (Call("gather", None, "int8", 1, None), "gather names rank None"),
        (Call("dance", None, "int8", 1, 0), "unknown collective 'dance'"),
        (Call("allreduce", "bxor", "float32", 1, None), "bxor"),
    ],
)
def test_calls_that_make_no_sense(call: Call, words: str) -> None:
    with pytest.raises(StormbedError, match=words):
        call.spec(Ranks.of([1, 1]), 2)
