"""Own: whole searches in the order in which they could end, not their stages.

The stages of a search follow one another without a gap, so the sum of its stage completion times is the time that
the whole search takes: a low mean stage completion time means that searches end early, and a stage that is small but
has much behind it should wait. Each stage is ranked by its own load and that of the stages that can begin only when
it has ended (`Stage.ahead`, which a search knows from its rungs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agents.coflow.base import TIE, Allocation, CoflowError, Loads, Number, Ranking, Stage, View, largest
from agents.coflow.beamer import by_stages
from agents.coflow.bssi import bssi

# Subsets of so many are gone through in about 10 ms.
EXACT = 8


@dataclass(frozen=True)
class Horizon:
    """The order of the least estimated sum of ends, for a few searches over all orders, for many by BSSI.

    A search is estimated to end when the most loaded of its own links has carried it and all that goes before it
    there, or when it would end on an empty network, whichever is later.

    exact  up to so many stages under way all orders are compared (0: never)
    """

    exact: int = EXACT
    name: ClassVar[str] = "horizon"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.exact, bool) or not isinstance(self.exact, int) or not 0 <= self.exact <= 12:
            raise CoflowError(f"horizon: exact {self.exact!r}", hint="a whole number from 0 to 12")

    def order(self, view: View) -> Ranking:
        return by_stages(view, self.rank_stages, self.name)

    def rank_stages(self, view: View) -> list[Stage]:
        """All stages of the view, the first to serve first."""
        stages = sorted(view.stages, key=lambda stage: stage.id)
        loads = [_whole(stage) for stage in stages]
        weights = [stage.weight for stage in stages]
        if len(stages) > self.exact:
            return [stages[number] for number in bssi(loads, weights)]
        alone = [max(job.alone for job in stage.jobs) + stage.ahead_alone for stage in stages]
        return [stages[number] for number in least_sum(loads, alone, weights)]


def _whole(stage: Stage) -> dict[int, Number]:
    total = dict(stage.loads)
    for link, load in stage.ahead.items():
        total[link] = total.get(link, 0) + load
    return total


def least_sum(loads: Sequence[Loads], alone: Sequence[Number], weights: Sequence[Number]) -> list[int]:
    """The order of the least weighted sum of estimated ends, by dynamic programming over subsets.

    Ties: the lowest number goes first.
    """
    count = len(loads)
    totals: list[dict[int, Number]] = [{}]
    best: list[Number] = [0]
    last: list[int] = [-1]
    for members in range(1, 1 << count):
        low = (members & -members).bit_length() - 1
        total = dict(totals[members & (members - 1)])
        for link, load in loads[low].items():
            total[link] = total.get(link, 0) + load
        totals.append(total)
        least: Number = None
        chosen = -1
        # Downwards, so that among equals the highest number goes last.
        for number in reversed(range(count)):
            if members >> number & 1:
                end = max(largest({link: total[link] for link in loads[number]}), alone[number])
                cost = best[members ^ 1 << number] + weights[number] * end
                if least is None or (least - cost) * TIE > least:
                    least, chosen = cost, number
        best.append(least)
        last.append(chosen)
    order: list[int] = []
    members = (1 << count) - 1
    while members:
        order.append(last[members])
        members ^= 1 << last[members]
    return order[::-1]
