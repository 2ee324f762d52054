"""Splitting a batch over workers of unequal speed, so that all finish at about the same time.

Source: the second mechanism of GreedW (see `greedw`); rules as in load-balanced synchronous training. Worker
i needs c_i seconds a sample and m_i besides (start-up, its own way to where sums merge). With all finishing
at T,
    b_i = (T - m_i) / c_i  within its limits,   sum b_i = B.
The sum grows with T, so T is found exactly by walking the points where a worker meets a limit. Whole numbers
by largest remainder, so that they add up to B. With B fixed the sum of gradients is that of the same batch
on one machine, whatever the split, if each sample counts once: divide by B, not by the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topologies.errors import UsageError

DEAD_BAND = 0.05
STEP = 0.25


def finish_time(
    total: int,
    seconds_per_sample: Sequence[float],
    overhead_s: Sequence[float] | None = None,
    least: Sequence[float] | float = 0,
    most: Sequence[float] | float = math.inf,
) -> float:
    """T, at which workers within their limits take `total` samples together.

    UsageError when the limits do not allow it or a speed is not positive.
    """
    c, m, low, high = _checked(total, seconds_per_sample, overhead_s, least, most)

    def taken(time: float) -> float:
        return math.fsum(_share(time, *worker) for worker in zip(c, m, low, high, strict=True))

    turns = {
        m[i] + c[i] * limit for i in range(len(c)) for limit in (low[i], high[i]) if math.isfinite(limit)
    }
    before = min(turns)
    for turn in sorted(turns):
        if taken(turn) >= total:
            break
        before = turn
    # Between two turns the same workers move, each at 1/c.
    probe = taken(before)
    after = [t for t in turns if t > before]
    middle = (before + min(after)) / 2 if after else before + 1.0
    speed = (taken(middle) - probe) / (middle - before)
    return before if probe >= total or speed == 0 else before + (total - probe) / speed


def split_batch(
    total: int,
    seconds_per_sample: Sequence[float],
    overhead_s: Sequence[float] | None = None,
    least: Sequence[float] | float = 0,
    most: Sequence[float] | float = math.inf,
) -> tuple[int, ...]:
    """Whole samples per worker that add up to `total`, all finishing at about the same time."""
    c, m, low, high = _checked(total, seconds_per_sample, overhead_s, least, most)
    time = finish_time(total, c, m, low, high)
    exact = [_share(time, *worker) for worker in zip(c, m, low, high, strict=True)]
    whole = [
        math.ceil(low[i]) if x <= math.ceil(low[i]) else math.floor(x + 1e-9) for i, x in enumerate(exact)
    ]
    ranked = sorted(range(len(c)), key=lambda i: (whole[i] - exact[i], i))
    while sum(whole) != total:
        step = 1 if sum(whole) < total else -1
        for i in ranked if step > 0 else reversed(ranked):
            if sum(whole) != total and low[i] <= whole[i] + step <= high[i]:
                whole[i] += step
    return tuple(whole)


def next_batches(
    current: Sequence[int],
    seconds: Sequence[float],
    least: int = 1,
    most: float = math.inf,
    dead_band: float = DEAD_BAND,
    step: float = STEP,
) -> tuple[int, ...]:
    """Batches for the next round from what the last one took: proportional to speed, the same sum.

    Unchanged while (slowest - fastest) / slowest is within `dead_band`; no batch changes by more than `step`
    of itself, so that one odd measurement does not upset the split.
    """
    slowest = max(seconds)
    if slowest <= 0:
        return tuple(current)
    if (slowest - min(seconds)) / slowest <= dead_band:
        return tuple(current)
    speed = [time / max(batch, 1) for batch, time in zip(current, seconds, strict=True)]
    low = [min(batch, max(least, math.ceil(batch * (1 - step)))) for batch in current]
    high = [max(batch, min(most, math.floor(batch * (1 + step)))) for batch in current]
    return split_batch(sum(current), speed, None, low, high)


def _share(time: float, c: float, m: float, low: float, high: float) -> float:
    return min(max((time - m) / c, low), high)


def _checked(
    total: int,
    seconds_per_sample: Sequence[float],
    overhead_s: Sequence[float] | None,
    least: Sequence[float] | float,
    most: Sequence[float] | float,
) -> tuple[list[float], list[float], list[float], list[float]]:
    n = len(seconds_per_sample)
    c = [float(value) for value in seconds_per_sample]
    m = [0.0] * n if overhead_s is None else [float(value) for value in overhead_s]
    low = [float(least)] * n if isinstance(least, int | float) else [float(value) for value in least]
    high = [float(most)] * n if isinstance(most, int | float) else [float(value) for value in most]
    if not (n and len(m) == len(low) == len(high) == n):
        raise UsageError(f"a batch cannot be split over {n} workers with limits for {len(low)}")
    if min(c) <= 0 or min(m) < 0 or any(a > b for a, b in zip(low, high, strict=True)):
        raise UsageError("a worker needs time for a sample, and a least batch not above its most")
    if (
        not sum(math.ceil(a) for a in low)
        <= total
        <= sum(b if math.isinf(b) else math.floor(b) for b in high)
    ):
        raise UsageError(
            f"{n} workers within their limits cannot share {total} samples", hint="change the limits"
        )
    return c, m, low, high
