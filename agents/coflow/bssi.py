"""Bottleneck, select, scale, iterate: the permutation behind Sincronia and Beamer.

From the last to the first: on the most loaded link, the one with the least weight per load goes last, and
the weights of all others shrink by what they have on that link (Agarwal et al., Sincronia, SIGCOMM 2018,
after the primal-dual 2-approximation of concurrent open shop, Mastrolilli et al. 2010).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from agents.coflow.base import TIE, Loads, Number, largest

KAPPA = Fraction(1, 2)
# A weight that scaling has used up but for rounding, relative to what it was.
_USED_UP = 10**12


@dataclass(frozen=True)
class Placement:
    """One step: who went last, on account of which link (None: of its release, or it has no load)."""

    chosen: int
    link: int | None
    weight: Number
    theta: Number


def placements(
    loads: Sequence[Loads],
    weights: Sequence[Number] | None = None,
    releases: Sequence[Number] | None = None,
    kappa: Number = KAPPA,
) -> list[Placement]:
    """All steps, the last place first. Entries are named by their place in `loads`.

    With `releases`: while the latest release exceeds `kappa` times the largest total load, that entry goes
    last (after Ahmadi, Khuller, Purohit and Yang). Entries without load go first. Ties: the link of the
    lowest number; among entries the highest index goes last.
    """
    left = set(range(len(loads)))
    weight = [1] * len(loads) if weights is None else list(weights)
    initial = list(weight)
    totals: dict[int, Number] = {}
    on_link: dict[int, dict[int, Number]] = {}
    for number, own in enumerate(loads):
        for link, load in own.items():
            if load > 0:
                totals[link] = totals.get(link, 0) + load
                on_link.setdefault(link, {})[number] = load
    # In this order the first that comes near the largest is the one of the lowest number.
    totals = dict(sorted(totals.items()))
    late = [] if releases is None else sorted(range(len(loads)), key=lambda k: (releases[k], k))
    steps: list[Placement] = []

    def place(number: int, link: int | None, theta: Number) -> None:
        steps.append(Placement(number, link, weight[number], theta))
        left.discard(number)
        for own_link in loads[number]:
            members = on_link.get(own_link)
            if members is None or number not in members:
                continue
            totals[own_link] -= members.pop(number)
            if not members:
                del totals[own_link], on_link[own_link]

    while totals:
        most = max(totals.values())
        if releases is not None:
            while late[-1] not in left:
                late.pop()
            if releases[late[-1]] > kappa * most:
                place(late.pop(), None, 0)
                continue
        link = next(link for link, total in totals.items() if (most - total) * TIE <= most)
        ratios = {number: weight[number] / load for number, load in on_link[link].items()}
        least = min(ratios.values())
        chosen = max(number for number, ratio in ratios.items() if (ratio - least) * TIE <= least)
        theta = ratios[chosen]
        for number, load in on_link[link].items():
            if number != chosen:
                scaled = weight[number] - theta * load
                weight[number] = scaled if scaled * _USED_UP > initial[number] else 0
        place(chosen, link, theta)
    by_release = sorted(left, key=lambda k: (releases[k] if releases is not None else 0, k))
    steps += [Placement(number, None, weight[number], 0) for number in reversed(by_release)]
    return steps


def bssi(
    loads: Sequence[Loads],
    weights: Sequence[Number] | None = None,
    releases: Sequence[Number] | None = None,
    kappa: Number = KAPPA,
) -> list[int]:
    """Places in `loads`, the first to serve first. See `placements`."""
    return [step.chosen for step in reversed(placements(loads, weights, releases, kappa))]


def prefix_loads(order: Sequence[int], loads: Sequence[Loads]) -> dict[int, Number]:
    """V: for each, the largest load on one link of all up to it in the order.

    Under greedy rates no coflow of a big switch ends later than twice its V.
    """
    total: dict[int, Number] = {}
    result = {}
    for number in order:
        for link, load in loads[number].items():
            total[link] = total.get(link, 0) + load
        result[number] = largest(total)
    return result
