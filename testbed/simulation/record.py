"""What the simulated world keeps of every collective."""

from __future__ import annotations

from dataclasses import dataclass

from agents.sync.spec import CollectiveSpec

SECOND = 1_000_000_000


@dataclass
class CollectiveRecord:
    """One collective at every site: virtual times (-1: not yet), elements delivered, sites left."""

    spec: CollectiveSpec
    ready_ns: list[int]
    done_ns: list[int]
    delivered: list[int]
    left: int

    @property
    def synchronisation_s(self) -> float:
        """Last result at any site minus last contribution ready at any site."""
        return (max(self.done_ns) - max(self.ready_ns)) / SECOND

    @property
    def complete(self) -> bool:
        return self.left == 0
