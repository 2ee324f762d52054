"""Smallest effective bottleneck first (Varys, SIGCOMM 2014)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agents.coflow.base import Allocation, Coflow, Number, Ranking, View, ascending, largest


@dataclass(frozen=True)
class Varys:
    """By the largest load of what is left; `static: true` by the largest load at arrival.

    Rates by MADD: each coflow gets just what lets all its flows end together, what is left is given away.
    """

    static: bool = False
    name: ClassVar[str] = "varys"
    allocation: ClassVar[Allocation] = "madd"
    reads_loads: ClassVar[bool] = True

    def order(self, view: View) -> Ranking:
        ranked = ascending(view.coflows, self._bottleneck, lambda coflow: coflow.id)
        return Ranking.of(coflow.id for coflow in ranked)

    def _bottleneck(self, coflow: Coflow) -> Number:
        return coflow.isolation if self.static else largest(coflow.loads)
