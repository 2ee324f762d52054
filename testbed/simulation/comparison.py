"""Every scheduler on one network, side by side with the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agents.planning.registry import SchedulerSpec, scheduler_names
from testbed.simulation.bounds import Bound, bound
from testbed.simulation.synchronise import Synchronisation, synchronise
from testbed.simulation.world import IDEAL, WorldOptions
from topologies.errors import UsageError
from topologies.model import Topology

SCHEMA = 1
ALEXNET = 57_029_322
"""Parameters of AlexNet for ten classes on one channel of 224x224, NetStorm's first workload."""
BYTES_PER_ELEMENT = 4


@dataclass(frozen=True)
class Comparison:
    """One synchronisation under each scheduler, all gradients ready at once."""

    topology: Topology
    elements: int
    chunk_elements: int
    limit: Bound
    results: tuple[Synchronisation, ...]

    @property
    def bound_s(self) -> float:
        assert self.limit.seconds is not None
        return self.limit.seconds

    def over_bound(self, result: Synchronisation) -> float:
        """How many times the least possible time it took."""
        return result.seconds / self.bound_s

    def rate_bps(self, result: Synchronisation) -> float:
        """Model bits synchronised per second."""
        return 8 * BYTES_PER_ELEMENT * self.elements / result.seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "topology": self.topology.name,
            "elements": self.elements,
            "chunk_elements": self.chunk_elements,
            "bound": {key: value for key, value in self.limit.to_dict().items() if key != "schema"},
            "schedulers": [
                {
                    "scheduler": result.scheduler,
                    "synchronisation_s": result.seconds,
                    "bound_ratio": self.over_bound(result),
                    "rate_bps": self.rate_bps(result),
                    "carried_bytes": round(sum(result.link_bits) / 8),
                }
                for result in self.results
            ],
        }


def compare(
    topology: Topology,
    elements: int = ALEXNET,
    chunk_elements: int = 100_000,
    schedulers: Sequence[SchedulerSpec] | None = None,
    *,
    options: WorldOptions = IDEAL,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Simulate one synchronisation under each scheduler (default: every one that exists)."""
    if elements < 1:
        raise UsageError(f"a model of {elements} parameters has nothing to synchronise")
    results = []
    for scheduler in scheduler_names() if schedulers is None else schedulers:
        say(f"simulating {scheduler if isinstance(scheduler, str) else scheduler['name']}")
        results.append(synchronise(topology, scheduler, elements, chunk_elements, options=options))
    limit = bound(topology, BYTES_PER_ELEMENT * elements)
    return Comparison(topology, elements, chunk_elements, limit, tuple(results))
