"""Chunks and their allocation against hand-computed vectors, and its invariants."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.chunks import Chunk, allocate, on_one_tree, pieces, quotas
from topologies.errors import StormbedError


def weights(*fractions: str) -> tuple[float, ...]:
    """As a plan carries them: floats that sum to 1."""
    exact = [Fraction(text) for text in fractions]
    return tuple(float(value / sum(exact)) for value in exact)


V1 = weights("5", "10", "5")
V2 = weights("2", "8/3", "8/3", "2")
V3 = weights("2", "20/11", "5/3", "0", "0")
V4 = weights("0", "0", "5", "5")
V6 = weights("20/3", "20/3", "5")
V8 = weights("3", "2", "1")
V9 = weights("25", "25", "100/3", "50", "100/3", "100/3", "100/3", "25", "25")


def trees(sizes: tuple[int, ...], chunk_elements: int, shares: tuple[float, ...]) -> list[int]:
    return [chunk.tree for chunk in allocate(sizes, chunk_elements, shares)]


@pytest.mark.parametrize(
    ("shares", "total", "quota"),
    [
        (V1, 8, (2, 4, 2)),
        (V2, 14, (3, 4, 4, 3)),
        (V3, 181, (66, 60, 55, 0, 0)),
        (V4, 4, (0, 0, 2, 2)),
        (V6, 11, (4, 4, 3)),
        (V8, 12, (6, 4, 2)),
        (V9, 34, (3, 3, 4, 6, 4, 4, 4, 3, 3)),
    ],
    ids=["V1", "V2", "V3", "V4", "V6", "V8", "V9"],
)
def test_quotas(shares: tuple[float, ...], total: int, quota: tuple[int, ...]) -> None:
    assert quotas(shares, total) == quota


def test_orders() -> None:
    assert trees((8,), 1, V1) == [0, 1, 2, 0, 1, 2, 1, 1]
    assert trees((14,), 1, V2) == [0, 1, 2, 3] * 3 + [1, 2]
    assert trees((4,), 1, V4) == [2, 3, 2, 3]
    assert trees((11,), 1, V6) == [0, 1, 2] * 3 + [0, 1]


def test_v3_meets_its_quotas_exactly() -> None:
    order = trees((181,), 1, V3)
    assert [order.count(tree) for tree in range(5)] == [66, 60, 55, 0, 0]


def test_v8_overshoot_over_several_tensors() -> None:
    table = allocate((5, 3, 4), 2, V8)
    assert [(c.part, c.offset, c.size) for c in table] == [
        (0, 0, 2),
        (0, 2, 2),
        (0, 4, 1),
        (1, 0, 2),
        (1, 2, 1),
        (2, 0, 2),
        (2, 2, 2),
    ]
    assert [c.tree for c in table] == [0, 1, 2, 0, 1, 2, 0]
    assert [sum(c.size for c in table if c.tree == tree) for tree in range(3)] == [6, 3, 3]


def test_chunks_of_the_two_large_layers_of_alexnet() -> None:
    assert len(list(pieces(9216 * 4096, 1_000_000))) == 38
    assert len(list(pieces(4096 * 4096, 1_000_000))) == 17


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_pieces_are_full_except_the_last(size: int, count: int) -> None:
    cut = list(pieces(size, 10))
    assert len(cut) == count
    assert sum(length for _, length in cut) == size
    assert all(length == 10 for _, length in cut[:-1])


def test_one_tree() -> None:
    assert on_one_tree((3, 0, 2), 2, 4) == (
        Chunk(0, 0, 0, 2, 4),
        Chunk(0, 1, 2, 1, 4),
        Chunk(2, 2, 0, 2, 4),
    )


def test_nothing_to_allocate() -> None:
    assert allocate((), 10, V1) == allocate((0, 0), 10, V1) == ()


@given(
    st.lists(st.integers(0, 500), max_size=8),
    st.integers(1, 60),
    st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=1, max_size=9),
)
def test_invariants(sizes: list[int], chunk_elements: int, perf: list[float]) -> None:
    if not any(perf):
        perf[0] = 1.0
    table = allocate(tuple(sizes), chunk_elements, tuple(perf))
    assert [chunk.index for chunk in table] == list(range(len(table)))
    for part, size in enumerate(sizes):  # every element once, in order
        position = 0
        for chunk in table:
            if chunk.part == part:
                assert chunk.offset == position
                assert 1 <= chunk.size <= chunk_elements
                position += chunk.size
        assert position == size
    quota = quotas(perf, sum(sizes))
    assert sum(quota) >= sum(sizes)
    for tree, share in enumerate(perf):
        assigned = sum(chunk.size for chunk in table if chunk.tree == tree)
        assert assigned < quota[tree] + chunk_elements
        if share == 0:
            assert assigned == 0


@example(25, [7, 18])  # 0.28 * 25 is 7.000000000000001
@given(st.integers(1, 10**11), st.lists(st.integers(1, 1000), min_size=1, max_size=64))
def test_quotas_are_the_exact_ceilings(total: int, perf: list[int]) -> None:
    """Float shares must not round a whole quota up, nor lose elements."""
    exact = [-(-w * total // sum(perf)) for w in perf]
    found = quotas([w / sum(perf) for w in perf], total)
    assert sum(found) >= total
    assert all(abs(a - b) <= 1 for a, b in zip(exact, found, strict=True))
    if total <= 10**9:
        assert list(found) == exact


def test_large_models_are_quick() -> None:
    start = time.process_time()
    table = allocate((57_029_322, 138_357_544), 10_000, tuple([1 / 64] * 64))
    assert len(table) == 5703 + 13836
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("bad", [(), (0.0, 0.0), (1.0, -0.1)])
def test_impossible_weights(bad: tuple[float, ...]) -> None:
    with pytest.raises(StormbedError):
        quotas(bad, 10)


def test_impossible_chunk_size() -> None:
    with pytest.raises(StormbedError, match="impossible"):
        allocate((5,), 0, (1.0,))
