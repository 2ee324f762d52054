"""Exact shares, interleaved in proportion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.chunks import cut_smoothly
from topologies.errors import StormbedError


def test_rates_8_2_2() -> None:
    table = cut_smoothly((12,), 2, (8.0, 2.0, 2.0))
    assert [chunk.tree for chunk in table] == [0, 0, 1, 2, 0, 0]
    assert {chunk.size for chunk in table} == {2}
    assert [chunk.position for chunk in table] == [1 / 8, 3 / 8, 1 / 2, 1 / 2, 5 / 8, 7 / 8]
    assert [chunk.offset for chunk in table] == [0, 2, 4, 6, 8, 10]


def test_rates_3_1_round_half_up() -> None:
    table = cut_smoothly((10,), 3, (3.0, 1.0))
    assert [(chunk.tree, chunk.size) for chunk in table] == [(0, 2), (0, 3), (1, 2), (0, 3)]
    assert [chunk.position for chunk in table] == pytest.approx([1 / 6, 1 / 2, 1 / 2, 5 / 6])


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=5),
    st.integers(1, 60),
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6),
)
def test_every_element_once_and_shares_exact(sizes: list[int], chunk: int, weights: list[float]) -> None:
    table = cut_smoothly(tuple(sizes), chunk, tuple(weights))
    covered = [
        (piece.part, element) for piece in table for element in range(piece.offset, piece.offset + piece.size)
    ]
    assert covered == [(part, element) for part, size in enumerate(sizes) for element in range(size)]
    assert [piece.index for piece in table] == list(range(len(table)))
    assert all(0 < piece.size <= chunk and 0 < piece.position < 1 for piece in table)
    assert [p.position for p in table] == sorted(p.position for p in table)
    for tree, weight in enumerate(weights):
        share = sum(piece.size for piece in table if piece.tree == tree)
        assert abs(share - sum(sizes) * weight / sum(weights)) <= 1


def test_what_it_refuses() -> None:
    for chunk, weights in ((0, (1.0,)), (10, ()), (10, (0.0,)), (10, (1.0, -1.0))):
        with pytest.raises(StormbedError):
            cut_smoothly((10,), chunk, weights)
