"""Sincronia: BSSI over the coflows under way (Agarwal et al., SIGCOMM 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from agents.coflow.base import Allocation, Coflow, CoflowError, Number, Ranking, View, ascending
from agents.coflow.bssi import bssi

EPOCHS = 8
_NEARLY = 1e-9


@dataclass
class Sincronia:
    """BSSI on remaining bytes at each arrival and completion, or (`online: epochs`) in doubling epochs.

    Epochs, as in the authors' simulator: a phase has eight, [0, 2), [2, 4), [4, 8), ... units after its
    start. At the start of the one that begins at 2d, of the coflows released by d those are admitted that a
    linear programme fits into d units on every link (half of one or more); their BSSI order holds for the
    epoch. All others follow, by isolation time over age: short ones first, but old ones rise. `unit_s` is the
    unit, the time of 1 MB in the authors' simulator. An object with epochs has a state: one run each.
    """

    online: Literal["events", "epochs"] = "events"
    unit_s: float = 1 / 128
    name: ClassVar[str] = "sincronia"
    allocation: ClassVar[Allocation] = "greedy"
    reads_loads: ClassVar[bool] = True
    _start: float = field(default=0.0, init=False)
    _epoch: int = field(default=-1, init=False)
    _admitted: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.online not in ("events", "epochs"):
            raise CoflowError(f"sincronia: online {self.online!r}", hint="events or epochs")
        if not self.unit_s > 0:
            raise CoflowError(f"sincronia: unit_s {self.unit_s}", hint="more than 0")

    def order(self, view: View) -> Ranking:
        if self.online == "epochs":
            return self._order_in_epochs(view)
        return Ranking.of(_permuted(view.coflows))

    def _order_in_epochs(self, view: View) -> Ranking:
        if self._advance(float(view.now)):
            limit = 1 if self._epoch == 0 else 2 ** (self._epoch - 1)
            cutoff = self._start + (0 if self._epoch == 0 else limit) * self.unit_s
            released = [c for c in view.coflows if c.arrival <= cutoff * (1 + _NEARLY)]
            self._admitted = _permuted(admit(released, limit * self.unit_s))
        present = {coflow.id: coflow for coflow in view.coflows}
        first = [number for number in self._admitted if number in present]
        settled = set(first)
        horizon = 2 ** (EPOCHS - 1) * self.unit_s

        def hurry(coflow: Coflow) -> Number:
            return coflow.isolation / (view.now - coflow.arrival + horizon)

        rest = ascending(
            (coflow for coflow in view.coflows if coflow.id not in settled), hurry, lambda coflow: coflow.id
        )
        return Ranking.of([*first, *(coflow.id for coflow in rest)], until=self._end(self._epoch))

    def _end(self, epoch: int) -> float:
        return self._start + 2 ** (epoch + 1) * self.unit_s

    def _advance(self, now: float) -> bool:
        """Whether a new epoch has begun."""
        phase = 2**EPOCHS * self.unit_s
        slack = _NEARLY * max(self.unit_s, abs(now) * 1e-3)
        epoch, start = self._epoch, self._start
        if now + slack >= self._start + phase:
            self._start += math.floor((now + slack - self._start) / phase) * phase
            self._epoch = 0
        self._epoch = max(self._epoch, 0)
        while now + slack >= self._end(self._epoch):
            self._epoch += 1
        return (epoch, start) != (self._epoch, self._start)


def admit(coflows: Sequence[Coflow], limit: Number) -> list[Coflow]:
    """Those of which a linear programme fits at least half into `limit` seconds on every link.

    The programme leaves out as little weight as it can.
    """
    links = sorted({link for coflow in coflows for link in coflow.loads})
    totals = {link: sum(coflow.loads.get(link, 0) for coflow in coflows) for link in links}
    full = [link for link in links if totals[link] > limit]
    if not full:
        return list(coflows)
    import numpy as np
    from scipy.optimize import linprog

    matrix = np.array([[float(coflow.loads.get(link, 0)) for coflow in coflows] for link in full])
    weights = np.array([float(coflow.weight) for coflow in coflows])
    solution = linprog(-weights, A_ub=matrix, b_ub=np.full(len(full), float(limit)), bounds=(0, 1))
    if solution.x is None:
        raise CoflowError(f"sincronia: no admission to an epoch: {solution.message}")
    return [coflow for coflow, part in zip(coflows, solution.x, strict=True) if part >= 0.5 - _NEARLY]


def _permuted(coflows: Sequence[Coflow]) -> list[int]:
    ranked = sorted(coflows, key=lambda coflow: coflow.id)
    order = bssi([coflow.loads for coflow in ranked], [coflow.weight for coflow in ranked])
    return [ranked[number].id for number in order]
