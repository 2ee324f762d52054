"""Estimators on simulated links of known rate, and the published vector."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.awareness import IdleLinks, Published, Sample, Unbiased, make_estimator
from agents.options import AwarenessOptions

MB = 1_000_000


def fifo(
    rate: float,
    arrivals: list[tuple[float, int]],
    *,
    delay: float = 0.0,
    kernel: int = 300_000,
    notice: float = 0.0,
    seed: int = 1,
) -> Iterator[Sample]:
    """Messages (when queued, size) over a link of `rate` bit/s behind a sender's buffer of `kernel` bytes.

    `notice`: the receiver notices each arrival up to so many seconds late.
    """
    chance = random.Random(seed)
    ends = noticed = 0.0
    first = True
    for queued, size in arrivals:
        left = max(queued, ends - 8 * kernel / rate)
        follows, first = not first and left < ends, False
        ends = max(ends, left) + 8 * size / rate
        noticed = max(noticed, ends + delay + chance.uniform(0, notice))
        yield Sample(size, left, noticed, follows)


def test_vector_v12() -> None:
    def samples() -> Iterator[Sample]:
        for took in (0.8, 1.0, 1.2, 1.0):
            yield Sample(4 * MB, 10.0, 10.0 + took)

    for report_rate, reported in ((0.1, True), (0.25, False)):
        published = Published(report_rate=report_rate)
        for _ in range(4):
            first = published.observe(Sample(4 * MB, 0.0, 0.8))
        assert first == pytest.approx(5.0 * 8 * MB)  # the first is always reported
        last = [published.observe(sample) for sample in samples()]
        assert last[:3] == [None, None, None]
        assert last[3] == (pytest.approx(4.0 * 8 * MB) if reported else None)
        assert published.rate == pytest.approx(4.0 * 8 * MB)


def test_published_times_only_large_messages_and_windows_start_anew() -> None:
    published = Published(window=2)
    assert published.observe(Sample(1_999_999, 0, 1)) is None and published.rate is None
    assert published.observe(Sample(2 * MB, 0, 1)) is None
    assert published.observe(Sample(10, 0, 100)) is None
    assert published.observe(Sample(2 * MB, 0, 1)) == 16 * MB
    assert published.observe(Sample(2 * MB, 0, 4)) is None
    assert published.observe(Sample(2 * MB, 0, 4)) == 4 * MB  # nothing is left of the first window
    assert published.age(10.0) == 6.0


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(5e6, 500e6),
    delay=st.sampled_from([0.0, 0.002, 0.02]),
    sizes=st.lists(st.integers(200_000, 1_000_000), min_size=60, max_size=90),
)
def test_under_backlog_unbiased_is_right_and_published_is_low(
    rate: float, delay: float, sizes: list[int]
) -> None:
    unbiased = Unbiased(delay)
    published = Published(min_bytes=1)
    # Messages of a few seconds, all queued at once, behind a buffer of their own size and more.
    times = 1 + int(rate * (16 * delay) / (8 * sum(sizes)))
    for sample in fifo(rate, [(0.0, size) for size in sizes * times], delay=delay, kernel=1_000_000):
        unbiased.observe(sample)
        published.observe(sample)
    assert unbiased.rate == pytest.approx(rate, rel=0.01)
    assert published.rate is not None and published.rate < 0.75 * rate


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(5e6, 200e6), seed=st.integers(0, 1000))
def test_late_notice_of_arrivals_hardly_moves_unbiased(rate: float, seed: int) -> None:
    estimator = Unbiased(window=8)
    seen = []
    for sample in fifo(rate, [(0.0, 400_000)] * 400, notice=4 * 400_000 / rate, seed=seed):
        if (reported := estimator.observe(sample)) is not None:
            seen.append(reported)
    assert len(seen) > 10
    assert sorted(seen)[len(seen) // 2] == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_step_is_followed_within_a_window(factor: float) -> None:
    estimator = Unbiased()
    *_, last = fifo(100e6, [(0.0, 400_000)] * 20)
    for sample in fifo(100e6, [(0.0, 400_000)] * 20):
        estimator.observe(sample)
    assert estimator.rate == pytest.approx(100e6)
    after = [
        Sample(s.size, s.left + last.done, s.done + last.done, s.follows)
        for s in fifo(100e6 * factor, [(0.0, 400_000)] * 6)
    ]
    for sample in after:
        estimator.observe(sample)
    assert estimator.rate == pytest.approx(100e6 * factor, rel=0.01)


def test_what_only_bounds_the_rate_raises_an_estimate_but_does_not_lower_it() -> None:
    delay = 0.05
    estimator = Unbiased(delay, window=1)
    # Each message met an idle link, and took little longer than a few round trips.
    assert estimator.observe(Sample(100_000, 0.0, 0.1, False)) == pytest.approx(8e6)
    assert estimator.observe(Sample(100_000, 1.0, 1.2, False)) is None
    assert estimator.rate == pytest.approx(8e6)
    assert estimator.observe(Sample(100_000, 2.0, 2.05, False)) == pytest.approx(16e6)
    # Beyond the first round trips of a busy period a slower rate counts.
    done = 2.05
    for _ in range(6):
        done += 0.1
        estimator.observe(Sample(100_000, 2.0, done, True))
    assert estimator.rate == pytest.approx(8e6)
    assert estimator.age(done + 3.0) == pytest.approx(3.0)


def test_gaps_while_the_sender_had_nothing_to_send_do_not_count() -> None:
    estimator = Unbiased()
    # Pairs, half a second apart, over 40 Mbit/s.
    arrivals = [(0.5 * (k // 2), 400_000) for k in range(40)]
    for sample in fifo(40e6, arrivals):
        estimator.observe(sample)
    assert estimator.rate == pytest.approx(40e6)


def test_unbiased_reports_what_changes_and_now_and_then_what_does_not() -> None:
    estimator = Unbiased()
    reports = [estimator.observe(sample) for sample in fifo(32e6, [(0.0, 400_000)] * 400)]  # 0.1 s each
    count = sum(report is not None for report in reports)
    assert 30 <= count <= 41  # one a second over 40 s


def test_the_options_choose_the_estimator() -> None:
    assert isinstance(make_estimator(AwarenessOptions(estimator="published"), 0.0), Published)
    assert isinstance(make_estimator(AwarenessOptions(estimator="unbiased"), 0.0), Unbiased)


def test_idle_links_are_probed_one_at_a_time_and_used_ones_not() -> None:
    idle = IdleLinks((3, 5, 7), idle_s=10.0, now=0.0)
    assert idle.due(9.9) is None
    idle.used(5, 9.0)
    assert idle.due(10.0) == 3
    assert idle.due(10.0) == 7
    assert idle.due(10.0) is None
    assert idle.due(19.0) == 5
    assert idle.due(20.0) == 3
    assert IdleLinks((3,), idle_s=0.0, now=0.0).due(1e9) is None
    assert IdleLinks((), idle_s=1.0, now=0.0).due(1e9) is None


def test_a_declared_delay_that_is_too_long_does_no_harm_under_backlog() -> None:
    estimator = Unbiased(delay_s=0.05)
    for sample in fifo(40e6, [(0.0, 400_000)] * 40, delay=0.002):
        estimator.observe(sample)
    assert estimator.rate == pytest.approx(40e6)


def test_where_the_sender_does_not_know_the_times_decide_or_nothing_does() -> None:
    estimator = Unbiased(delay_s=0.01, window=1)
    estimator.observe(Sample(100_000, 0.0, 1.0, False))
    assert estimator.rate == pytest.approx(0.8e6)
    # Left while the one before was still under way, by more than the delay: back to back.
    assert estimator.observe(Sample(100_000, 0.98, 1.1, None)) == pytest.approx(8e6)
    # Left so late that the link may have been idle, or not.
    assert estimator.observe(Sample(100_000, 1.095, 1.2, None)) is None
