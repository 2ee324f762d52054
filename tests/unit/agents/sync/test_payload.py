"""Arrays combine in place where they may; ghosts notice every miscount."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.sync.payload import ArrayPayload, GhostPayload, PayloadError, combine_arrays


def array(*numbers: float, dtype: str = "int32") -> np.ndarray:
    return np.array(numbers, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "result"),
    [
        ("sum", [9, 5]),
        ("prod", [18, 6]),
        ("min", [3, 2]),
        ("max", [6, 3]),
        ("band", [2, 2]),
        ("bor", [7, 3]),
        ("bxor", [5, 1]),
    ],
)
def test_operators(op: str, result: list[int]) -> None:
    assert list(combine_arrays(op, array(6, 2), array(3, 3))) == result


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32", "float64", "complex64"])
def test_sums_stay_in_their_own_type(dtype: str) -> None:
    total = combine_arrays("sum", array(1, 2, dtype=dtype), array(3, 4, dtype=dtype))
    assert total.dtype == dtype
    assert list(total) == [4, 6]


def test_sums_of_truth_values_are_or_and_products_and() -> None:
    left, right = np.array([True, True, False]), np.array([True, False, False])
    assert list(combine_arrays("sum", left, right)) == [True, True, False]
    assert list(combine_arrays("prod", left, right)) == [True, False, False]


@pytest.mark.parametrize(
    ("left_owned", "right_owned"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_only_owned_buffers_are_written(left_owned: bool, right_owned: bool) -> None:
    left, right = array(1, 2), array(10, 20)
    left.flags.writeable, right.flags.writeable = left_owned, right_owned
    result = ArrayPayload(left, owned=left_owned).combine("sum", ArrayPayload(right, owned=right_owned))
    assert list(result.array) == [11, 22]
    assert result.owned
    assert (result.array is left) == left_owned
    assert (result.array is right) == (right_owned and not left_owned)


@pytest.mark.parametrize("other", [array(1, 2, 3), array(1, 2, dtype="int64"), array(1, dtype="int32")])
def test_what_does_not_fit(other: np.ndarray) -> None:
    with pytest.raises(PayloadError, match="cannot combine"):
        ArrayPayload(array(1, 2), owned=True).combine("sum", ArrayPayload(other))


def test_sizes() -> None:
    assert ArrayPayload(array(1, 2, 3, dtype="float64")).nbytes == 24
    assert GhostPayload.of(3, 24).nbytes == 24
    with pytest.raises(PayloadError, match="24 bytes"):
        GhostPayload.of(3, 24).combine("sum", GhostPayload.of(4, 16))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.randoms())
def test_ghosts_count_as_a_multiset_does(sites: list[int], rng: object) -> None:
    ghosts = [GhostPayload.of(site, 8) for site in sites]
    while len(ghosts) > 1:  # in any tree-like order
        rng.shuffle(ghosts)  # type: ignore[attr-defined]
        ghosts.append(ghosts.pop().combine("sum", ghosts.pop()))
    (total,) = ghosts
    assert total.sites == set(sites)
    assert total.again == sum(1 << site for site in set(sites) if sites.count(site) > 1)


def test_what_is_wrong_with_a_ghost_is_said() -> None:
    total = GhostPayload.of(1, 8).combine("sum", GhostPayload.of(2, 8)).combine("sum", GhostPayload.of(2, 8))
    GhostPayload(8, 0b110).assert_exact([1, 2])
    with pytest.raises(PayloadError, match=r"sites counted more than once \[2\]"):
        total.assert_exact([1, 2])
    with pytest.raises(PayloadError, match=r"missing sites \[0\], unwanted sites \[2\]"):
        total.assert_exact([0, 1])
