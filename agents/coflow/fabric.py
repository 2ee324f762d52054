"""Networks as the orderings see them: directed links with rates, and the links that a flow crosses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from agents.coflow.base import CoflowError, Number

if TYPE_CHECKING:
    from topologies.model import Topology

Pair = tuple[int, int]


@dataclass(frozen=True)
class Flow:
    """Bytes from a source to a destination; both are ports of a switch, or sites."""

    src: int
    dst: int
    size: Number


@dataclass(frozen=True)
class Fabric:
    """Links with capacities in bytes per second, and the route of every pair.

    capacity  of each link, by its number
    routes    the links from a source to a destination; None = a big switch: the source's sending port i is
              link i, the destination's receiving port o is link ports + o
    ports     of a big switch, 0 else
    """

    capacity: tuple[Number, ...]
    routes: Mapping[Pair, tuple[int, ...]] | None = None
    ports: int = 0

    def __post_init__(self) -> None:
        for link, rate in enumerate(self.capacity):
            if not rate > 0:
                raise CoflowError(f"link {link} carries {rate} bytes/s", hint="give it more than 0")

    @classmethod
    def switch(cls, ports: int, rate: Number | Sequence[Number]) -> Fabric:
        """A switch without contention inside; one rate for all, or those of its 2 x ports (sending first)."""
        rates = tuple(rate) if isinstance(rate, Sequence) else (rate,) * (2 * ports)
        if ports < 1 or len(rates) != 2 * ports:
            raise CoflowError(f"{len(rates)} rates for a switch of {ports} ports", hint="give two a port")
        return cls(rates, None, ports)

    @classmethod
    def of(cls, topology: Topology) -> Fabric:
        """The links of a topology by `DirectedLink.index`; flows take the primary paths."""
        from topologies.paths import path_sets

        number = {(link.src, link.dst): link.index for link in topology.directed}
        return cls(
            tuple(link.rate.bps / 8 for link in topology.directed),
            {
                pair: tuple(number[hop] for hop in pairwise(paths[0]))
                for pair, paths in path_sets(topology).items()
            },
        )

    @cached_property
    def uniform(self) -> bool:
        """A switch whose ports all have one rate: rates in priority order are then all or nothing."""
        return self.routes is None and len(set(self.capacity)) == 1

    @cached_property
    def longest(self) -> int:
        """The most links that a flow crosses."""
        return 2 if self.routes is None else max(map(len, self.routes.values()), default=0)

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        if self.routes is None:
            if not (0 <= src < self.ports and 0 <= dst < self.ports):
                raise CoflowError(f"no flow {src} -> {dst}: the switch has ports 0..{self.ports - 1}")
            return src, self.ports + dst
        try:
            return self.routes[src, dst]
        except KeyError:
            raise CoflowError(f"no path from {src} to {dst}") from None

    def loads(self, flows: Iterable[Flow]) -> dict[int, Number]:
        """Seconds on each link that some flows need."""
        total: dict[int, Number] = {}
        for flow in flows:
            for link in self.route(flow.src, flow.dst):
                total[link] = total.get(link, 0) + flow.size
        return {link: amount / self.capacity[link] for link, amount in total.items()}


def merged(flows: Iterable[Flow]) -> tuple[Flow, ...]:
    """One flow a pair in the order (source, destination), empty ones dropped; negative sizes are refused."""
    sizes: dict[Pair, Number] = {}
    for flow in flows:
        if flow.size < 0:
            raise CoflowError(f"flow {flow.src} -> {flow.dst} has {flow.size} bytes", hint="at least 0")
        sizes[flow.src, flow.dst] = sizes.get((flow.src, flow.dst), 0) + flow.size
    return tuple(Flow(src, dst, size) for (src, dst), size in sorted(sizes.items()) if size > 0)
