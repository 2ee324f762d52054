"""Per-flow fair sharing: no order at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agents.coflow.base import Allocation, Ranking, View


@dataclass(frozen=True)
class Fair:
    """All flows of all coflows share max-min fairly, as TCP roughly does."""

    name: ClassVar[str] = "fair"
    allocation: ClassVar[Allocation] = "fair"
    reads_loads: ClassVar[bool] = False

    def order(self, view: View) -> Ranking:
        return Ranking((tuple(coflow.id for coflow in view.coflows),) if view.coflows else ())
