"""The numpy worker's own arithmetic: its check can fail, and does for the errors it must find."""

from __future__ import annotations

import numpy as np
import pytest

from agents.numpy_worker import Mismatch, check, contribution, expected, parse_segment
from topologies.errors import UsageError


@pytest.mark.parametrize("elements", [0, 1, 250, 251, 252, 100_000])
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
def test_the_closed_form_is_the_sum_of_all_contributions(elements: int, dtype: str) -> None:
    for world, iteration, seed in [(1, 0, 0), (9, 3, 4), (21, 250, 999)]:
        total = np.zeros(elements, dtype)
        one, wanted = np.empty(elements, dtype), np.empty(elements, dtype)
        for rank in range(world):
            contribution(rank, iteration, seed, one)
            total += one
        expected(world, iteration, seed, wanted)
        check(total, wanted, iteration)


def test_what_goes_wrong_is_found() -> None:
    def total(ranks: list[int], iteration: int = 0) -> np.ndarray:
        result, one = np.zeros(5000, np.float32), np.empty(5000, np.float32)
        for rank in ranks:
            contribution(rank, iteration, 0, one)
            result += one
        return result

    wanted = np.empty(5000, np.float32)
    expected(4, 0, 0, wanted)
    check(total([0, 1, 2, 3]), wanted, 0)
    swapped = total([0, 1, 2, 3])
    swapped[:1000], swapped[1000:2000] = swapped[1000:2000].copy(), swapped[:1000].copy()
    for wrong in (
        total([0, 1, 2]),
        total([0, 1, 2, 3, 3]),
        total([0, 1, 2, 2]),
        total([0, 1, 2, 3], 1),
        swapped,
    ):
        with pytest.raises(Mismatch, match=r"iteration 0: .* of 5000 elements are wrong, the first at"):
            check(wrong, wanted, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"elements": -1}, "elements"),
        ({"iterations": 0}, "iterations"),
        ({"dtype": "float7"}, "float7"),
        ({"compute": {"mean_s": 0}}, "compute"),
    ],
)
def test_segments_that_make_no_sense(change: dict[str, object], words: str) -> None:
    good = {"label": "a", "iterations": 1, "elements": [1, 2], "model": "ignored"}
    assert parse_segment(dict(good)).elements == [1, 2]
    with pytest.raises(UsageError, match=words):
        parse_segment({**good, **change})
