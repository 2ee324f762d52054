"""Which links a hop crosses in the simulated world, as long as none is cut."""

from __future__ import annotations

from itertools import pairwise

from agents.declared_network import DeclaredNetwork
from agents.planning.base import NetworkView
from topologies.model import Topology

DIRECT = 1
"""Path number, in the simulated world, of the direct link where that is not the primary path."""


class Underlay:
    """The primary path of every pair and the direct link of neighbours: all that most runs use.

    The emulated network installs up to eight disjoint paths a pair. To find them for all pairs takes longer
    than to simulate (64 sites: seconds; 1,000 sites: hours), so here paths are found when first used. Path 0
    is the same in both worlds (a test compares); the number of the direct link is only this world's own.
    """

    def __init__(self, topology: Topology) -> None:
        self.view = NetworkView(
            len(topology.site_names),
            {arc: float(bps) for arc, bps in topology.rates().items()},
            topology.site_names,
            delays={(link.src, link.dst): link.delay.seconds for link in topology.directed if link.delay.ns},
        )
        self._neighbours = frozenset(self.view.rates)
        self._primary: dict[tuple[int, int], tuple[int, ...]] = {}

    def path(self, src: int, dst: int, number: int) -> tuple[int, ...]:
        """The sites from `src` to `dst`; a number that the pair does not have means the primary path."""
        if number == DIRECT and (src, dst) in self._neighbours:
            return src, dst
        path = self._primary.get((src, dst))
        if path is None:
            path = self._primary[src, dst] = self.view.relay(src, dst)
        return path

    def direct_numbers(self) -> dict[tuple[int, int], int]:
        """The path number of the direct link for every pair of neighbours whose primary path is another."""
        return {(u, v): DIRECT for u, v in sorted(self._neighbours) if len(self.path(u, v, 0)) > 2}


class WholeUnderlay(Underlay):
    """All paths of every pair, numbered as in the emulated network: for detours, and for links that are cut."""

    def __init__(self, network: DeclaredNetwork) -> None:
        super().__init__(network.topology)
        self._network = network

    def path(self, src: int, dst: int, number: int) -> tuple[int, ...]:
        return self._network.path(src, dst, number)

    def direct_numbers(self) -> dict[tuple[int, int], int]:
        return self._network.hop_paths(tuple(range(len(self._network.topology.site_names))))


def control_delays(topology: Topology, underlay: Underlay, own_ns: int, coordinator: str | None) -> list[int]:
    """One way between each site and the coordinator: `own_ns` where it is out of band, and the links' delays on top
    where it is at a site.
    """
    if coordinator is None:
        return [own_ns] * len(topology.site_names)
    at = topology.index(coordinator)
    delays = {(link.src, link.dst): link.delay.ns for link in topology.directed}
    return [
        own_ns + (0 if k == at else sum(delays[hop] for hop in pairwise(underlay.path(k, at, 0))))
        for k in range(len(topology.site_names))
    ]
