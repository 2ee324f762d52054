"""The delay line's rule, without sockets; the process itself is tested in tests/emulated."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.impairment import LATENESS_BOUNDS_S, LULL_NS, Impairment, Pipe, quantile_s

MS = 1_000_000


def pipe(impairment: Impairment, limit_bytes: int = 2**30, seed: int = 1) -> Pipe:
    return Pipe(impairment, limit_bytes, seed)


@given(
    delay=st.integers(0, 200 * MS),
    jitter=st.integers(0, 300 * MS),
    gaps=st.lists(st.integers(0, 5 * MS), min_size=1, max_size=60),
    seed=st.integers(0, 1000),
)
def test_frames_keep_their_order_and_never_leave_before_they_came(
    delay: int, jitter: int, gaps: list[int], seed: int
) -> None:
    line, now, releases = pipe(Impairment(delay, jitter), seed=seed), 0, []
    for gap in gaps:
        now += gap
        release = line.admit(1500, now)
        assert release is not None and release >= now
        releases.append(release)
    assert releases == sorted(releases)


def test_without_jitter_the_delay_is_exact() -> None:
    line = pipe(Impairment(delay_ns=10 * MS))
    assert [line.admit(100, t) for t in (0, 5, 7 * MS)] == [10 * MS, 10 * MS + 5, 17 * MS]


def test_a_lone_frame_is_delayed_evenly_within_the_jitter() -> None:
    line = pipe(Impairment(delay_ns=20 * MS, jitter_ns=5 * MS))
    delays = []
    for i in range(2000):
        now = i * 1000 * MS  # far apart: order does not bind
        release = line.admit(100, now)
        assert release is not None
        delays.append((release - now) / MS)
    assert 15 <= min(delays) < 15.1 and 24.9 < max(delays) <= 25
    assert abs(sum(delays) / len(delays) - 20) < 0.3


def test_loss_is_drawn_by_the_seed_and_as_often_as_declared() -> None:
    def lost(seed: int) -> list[int]:
        line = pipe(Impairment(loss=0.1), seed=seed)
        return [i for i in range(5000) if line.admit(100, i) is None]

    assert lost(1) == lost(1) != lost(2)
    assert abs(len(lost(1)) - 500) < 4 * math.sqrt(5000 * 0.1 * 0.9)


def runs(lost: list[bool]) -> list[int]:
    """The lengths of the runs of lost frames."""
    return [len(list(group)) for is_lost, group in itertools.groupby(lost) if is_lost]


def test_uniform_loss_of_one_per_cent_is_within_a_tenth_of_it_and_without_memory() -> None:
    line, count = pipe(Impairment(loss=0.01)), 400_000
    lost = [line.admit(100, i) is None for i in range(count)]
    assert 0.009 <= sum(lost) / count <= 0.011, "six standard deviations"
    # Independent losses have runs of 1 / (1 - loss) on average.
    assert abs(statistics.mean(runs(lost)) - 1 / 0.99) < 0.01


@pytest.mark.parametrize(("mean", "burst"), [(0.01, 8.0), (0.1, 3.0), (0.3, 1.0)])
def test_losses_in_bursts_have_the_declared_mean_and_length(mean: float, burst: float) -> None:
    line, count = pipe(Impairment(loss=mean, burst=burst)), 300_000
    lost = [line.admit(100, i) is None for i in range(count)]
    found = runs(lost)
    # Runs are geometric with mean b, so their variance is b (b - 1); the chain's correlation is 1 - p - r.
    assert abs(statistics.mean(found) - burst) <= 4 * math.sqrt(burst * (burst - 1) / len(found))
    correlation = 1 - mean / (1 - mean) / burst - 1 / burst
    deviation = math.sqrt(mean * (1 - mean) / count * (1 + correlation) / (1 - correlation))
    assert abs(sum(lost) / count - mean) < 4 * deviation
    if burst > 1:
        assert max(found) > 2 * burst, "not all of one length"


def test_a_silence_ends_a_burst_and_leaves_the_mean() -> None:
    """Else TCP's lone retransmissions, ever further apart, would be all that can end it."""
    line = pipe(Impairment(loss=0.25, burst=1e6))
    lost = [line.admit(100, k * (LULL_NS + 1)) is None for k in range(1, 20_001)]
    assert abs(sum(lost) / len(lost) - 0.25) <= 4 * math.sqrt(0.25 * 0.75 / len(lost))
    runs = [len(list(group)) for bad, group in itertools.groupby(lost) if bad]
    assert statistics.mean(runs) < 1.5, "independent draws: 1 / (1 - 0.25)"
    # Just below it the burst goes on.
    line = pipe(Impairment(loss=0.25, burst=1e6))
    states = [line.admit(100, k * LULL_NS) is None for k in range(1, 1_001)]
    assert len(set(states[1:])) == 1


def test_a_burst_goes_on_through_a_change_of_the_link() -> None:
    line = pipe(Impairment(loss=0.5, burst=1e6))
    while line.admit(100, 0) is not None:
        pass
    line.impairment = Impairment(delay_ns=MS, loss=0.5, burst=1e6)
    assert line.admit(100, 0) is None


def test_drops_are_counted_by_cause() -> None:
    line = pipe(Impairment(delay_ns=MS), limit_bytes=2500)
    assert line.admit(1500, 0) is not None
    assert line.admit(1500, 0) is None, "the second does not fit"
    line.impairment = Impairment(blackhole=True)
    assert line.admit(100, 0) is None
    line.impairment = Impairment(loss=1.0)
    assert line.admit(100, 0) is None
    line.lost(1500, "queue")
    assert line.counters.drops == {
        "loss": 1,
        "blackhole": 1,
        "queue": 1,
        "overflow": 1,
        "down": 0,
        "missed": 0,
    }
    assert (line.held_frames, line.held_bytes) == (0, 0)


def test_a_changed_delay_does_not_let_frames_overtake() -> None:
    line = pipe(Impairment(delay_ns=50 * MS))
    assert line.admit(1, 0) == 50 * MS
    line.impairment = Impairment(delay_ns=0)
    assert line.admit(1, MS) == 50 * MS, "it waits behind the one ahead"
    assert line.admit(1, 60 * MS) == 60 * MS


def test_lateness_is_counted_in_buckets() -> None:
    line = pipe(Impairment())
    for late_ns in (10_000, 50_000, 2 * MS, 3 * MS, 500 * MS):
        line.admit(100, 0)
        line.released(100, late_ns)
    counters = line.counters
    assert (counters.frames, counters.bytes) == (5, 500)
    assert sum(counters.lateness) == 5 and len(counters.lateness) == len(LATENESS_BOUNDS_S) + 1
    assert counters.lateness[0] == 2 and counters.lateness[-1] == 1
    assert counters.lateness[LATENESS_BOUNDS_S.index(2e-3)] == 1, "a bound belongs to its own bucket"


def test_quantiles_are_bucket_bounds() -> None:
    buckets = [0] * (len(LATENESS_BOUNDS_S) + 1)
    assert quantile_s(buckets, 0.99) is None
    buckets[0], buckets[3] = 99, 1
    assert quantile_s(buckets, 0.5) == quantile_s(buckets, 0.99) == 50e-6
    assert quantile_s(buckets, 0.999) == 150e-6
    buckets[-1] = 10
    assert quantile_s(buckets, 0.99) == float("inf")


def test_only_a_bare_direction_is_left_to_the_kernel() -> None:
    assert Impairment().is_none
    assert not any(
        i.is_none for i in (Impairment(1), Impairment(0, 1), Impairment(loss=0.1), Impairment(blackhole=True))
    )
