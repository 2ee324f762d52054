"""What no schedule can beat: concurrent open shop, where every link works on its own."""

from __future__ import annotations

from collections.abc import Sequence

from agents.coflow.base import CoflowError, Loads, Number

MOST = 16


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
