"""How DDP's buckets fill, and when and in which class they are handed over."""

from __future__ import annotations

import pytest

from agents.backward import class_of, fill_buckets, share_of_time


def test_a_bucket_ends_with_the_gradient_that_fills_it() -> None:
    gradients = (10, 2000, 200, 40_000, 200, 156_800)  # of the model 2nn
    assert fill_buckets(gradients, 160_000) == (42_210, 157_000)
    assert fill_buckets(gradients, 4 * 42_210) == (42_210, 157_000), "exactly full is full"
    assert fill_buckets(gradients, 4 * 42_210 + 1) == (42_410, 156_800), "a byte more takes the next one in"
    assert fill_buckets(gradients, 1024) == (2010, 40_200, 157_000)
    assert fill_buckets(gradients, 2**30) == (199_210,)
    assert fill_buckets((300, 300), 1024) == (300, 300)
    assert fill_buckets((), 1024) == ()


def test_a_third_of_the_time_is_the_forward_pass_and_the_rest_goes_by_parameters() -> None:
    assert share_of_time(0, 100) == pytest.approx(1 / 3)
    assert share_of_time(25, 100) == pytest.approx(0.5)
    assert share_of_time(100, 100) == 1


def test_later_buckets_go_first_as_far_as_there_are_classes() -> None:
    assert [class_of(place) for place in range(10)] == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]
