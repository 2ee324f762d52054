"""`gloo`: what PyTorch does without this project, DistributedDataParallel over its backend gloo.

In the emulated world the workers call gloo itself and the agents carry nothing (`agents.worker.gloo`); this module
is the model of it for the simulated world and for `testbed plan`.

Source: gloo/allreduce.cc of github.com/pytorch/gloo. torch names no algorithm, and then gloo takes its ring:
reduce-scatter and all-gather, where rank r sends to rank r - 1 and receives from rank r + 1, the other way round
than `agents.planning.ring`. The model is cut into segments of at most 1 MiB and at least two a rank, and a rank
waits for the segment before the last one before it sends the next. So the slowest hop sets everyone's pace:
    T = M 2 (n-1)/n / (rate of the slowest hop),
which is the time of the ring's chains as well. Between two ranks gloo has one TCP connection on the network's
primary path (path 0); it knows no other.

What the model leaves out: the wait per segment (two are in flight, here there is no limit), so that delays cost gloo
more than they cost the model. It has one worker a site; with more, gloo's ring has as many steps as workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agents.planning.base import NetworkView, Plan
from agents.planning.ring import chains

NAME: Final = "gloo"


@dataclass(frozen=True)
class Gloo:
    """The ring of gloo, by rank downwards."""

    name: str = NAME

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> Gloo:
        """It has none: gloo is as torch brings it."""
        return cls()

    def plan(self, network: NetworkView) -> Plan:
        """One chain pair for every site, equal shares."""
        return Plan(self.name, chains(network, (0, *range(network.n - 1, 0, -1))), cut="smooth")
