"""What no schedule can beat: each link on its own, without having to agree with the others."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set

from agents.coflow.base import CoflowError, Loads, Number

MOST = 16
# Of the search for a good bound: links to start from, and rounds over all coflows.
_STARTS = 8
_PASSES = 4


def open_shop_optimum(loads: Sequence[Loads], weights: Sequence[Number] | None = None) -> Number:
    """The least weighted sum of completion times when the links need not agree, all present at 0.

    Every schedule of the coflows costs at least that. Exact: permutations are optimal there, and the best
    one is found over subsets, so at most 16 coflows.
    """
    count = len(loads)
    if count > MOST:
        raise CoflowError(f"an exact bound for {count} coflows takes too long", hint=f"at most {MOST}")
    weight = [1] * count if weights is None else list(weights)
    links = sorted({link for own in loads for link in own})
    totals: list[list[Number]] = [[0] * len(links)]
    best: list[Number] = [0]
    for members in range(1, 1 << count):
        low = (members & -members).bit_length() - 1
        rest = totals[members & (members - 1)]
        total = [load + loads[low].get(link, 0) for load, link in zip(rest, links, strict=True)]
        totals.append(total)
        end = max(total, default=0)
        best.append(
            min(
                best[members ^ (1 << last)] + weight[last] * end
                for last in range(count)
                if members >> last & 1
            )
        )
    return best[-1]


def stage_bound(computes: Sequence[Number], loads: Sequence[Loads]) -> Number:
    """The least sum of stage completion times, all stages present: by their own needs, or by the links.

    computes  seconds of computing of the stage's longest job
    """
    alone = sum(
        max(compute, max(own.values(), default=0)) for compute, own in zip(computes, loads, strict=True)
    )
    return alone if len(loads) > MOST else max(alone, open_shop_optimum(loads))


def trace_bound(arrivals: Sequence[float], loads: Sequence[Mapping[int, float]]) -> float:
    """Seconds that the completion times of coflows, each from its arrival, cannot sum to less than.

    Own bound: every coflow is charged to one link. On a link alone, serving whoever has least left (SRPT,
    preemptive) has the least sum, and a coflow ends no sooner than its part on that link. Any charging gives a
    bound; the best is sought from several starts: all to their largest load, which gives the sum of isolation
    times and more, or all that have a busy link to that. Not tight: a flow's two ends are not held together.
    """
    if not loads:
        return 0.0
    alone = [max(own, key=lambda link: (own[link], -link)) for own in loads]
    totals: dict[int, float] = {}
    for own in loads:
        for link, load in own.items():
            totals[link] = totals.get(link, 0.0) + load
    busiest = sorted(totals, key=lambda link: (-totals[link], link))[:_STARTS]
    starts = [alone] + [
        [link if link in own else there for own, there in zip(loads, alone, strict=True)] for link in busiest
    ]
    return max(_charged(arrivals, loads, start) for start in starts)


def _charged(arrivals: Sequence[float], loads: Sequence[Mapping[int, float]], start: Sequence[int]) -> float:
    """The bound of a charging, after moving coflows one by one to where the sum rises most."""
    charged = list(start)
    members: dict[int, set[int]] = {}
    for k, link in enumerate(charged):
        members.setdefault(link, set()).add(k)

    def value(link: int, whose: Set[int]) -> float:
        return srpt_sum((arrivals[k], loads[k][link]) for k in whose)

    values = {link: value(link, own) for link, own in members.items()}
    order = sorted(range(len(loads)), key=lambda k: (-max(loads[k].values()), k))
    for _ in range(_PASSES):
        moved = False
        for k in order:
            here = there = charged[k]
            without = value(here, members[here] - {k})
            best = values[here] - without
            for link in sorted(loads[k]):
                if link != here:
                    gain = value(link, members.get(link, set()) | {k}) - values.get(link, 0.0)
                    if gain > best * (1 + 1e-9):
                        there, best = link, gain
            if there != here:
                members[here].discard(k)
                members.setdefault(there, set()).add(k)
                values[here], values[there] = without, value(there, members[there])
                charged[k], moved = there, True
        if not moved:
            break
    return sum(values.values())


def srpt_sum(jobs: Iterable[tuple[float, float]]) -> float:
    """The least sum of completion minus arrival on one machine: (arrival, seconds) each, preemptive."""
    total = now = 0.0
    waiting: list[tuple[float, float]] = []
    for arrival, seconds in sorted(jobs):
        while waiting and now + waiting[0][0] <= arrival:
            left, came = heapq.heappop(waiting)
            now += left
            total += now - came
        if waiting:
            left, came = waiting[0]
            heapq.heapreplace(waiting, (left - (arrival - now), came))
        now = max(now, arrival)
        heapq.heappush(waiting, (seconds, arrival))
    while waiting:
        left, came = heapq.heappop(waiting)
        now += left
        total += now - came
    return total
