"""The paths that the network offers between any two sites."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from itertools import pairwise
from math import inf

from topologies.dscp import MAX_PATHS
from topologies.errors import UsageError
from topologies.model import Topology

Path = tuple[int, ...]
"""The sites from source to destination, both included."""

Hop = tuple[int, int]

_EQUAL = 1e-9
"""Costs within this relative distance are equal."""


def path_sets(topology: Topology, limit: int = MAX_PATHS) -> dict[tuple[int, int], tuple[Path, ...]]:
    """The paths of every ordered pair of sites, numbered from 0 as in the packets (own; after NetStorm).

    Path 0, the primary, is the fastest: the least sum of 1/rate over its hops. Each next one is the
    fastest that shares no link with those before it, in either direction. Among equals the lexicographically
    lowest wins. The direct path of two neighbours is always among them; where `limit` (1 to 8) would drop it,
    it comes last.
    """
    if not 1 <= limit <= MAX_PATHS:
        raise UsageError(f"a limit of {limit} paths cannot be", hint=f"it is 1 to {MAX_PATHS}")
    graph = _Graph(topology)
    sets = {}
    for dst in range(graph.size):
        distances = graph.distances(dst)
        for src in range(graph.size):
            if src != dst:
                sets[src, dst] = _disjoint_paths(graph, src, dst, limit, distances)
    return dict(sorted(sets.items()))


def direct_path_number(paths: Mapping[tuple[int, int], tuple[Path, ...]], src: int, dst: int) -> int | None:
    """The number of the one-hop path between two sites, or None where no link joins them."""
    for number, path in enumerate(paths[src, dst]):
        if len(path) == 2:
            return number
    return None


class _Graph:
    """Costs (1/rate) of the directions of all links, by where they begin and by where they end."""

    def __init__(self, topology: Topology) -> None:
        self.size = len(topology.site_names)
        self.outgoing: list[dict[int, float]] = [{} for _ in range(self.size)]
        self.incoming: list[dict[int, float]] = [{} for _ in range(self.size)]
        for (u, v), bps in topology.rates().items():
            self.outgoing[u][v] = self.incoming[v][u] = 1 / bps

    def distances(
        self, dst: int, *, without: Set[Hop] = frozenset(), until: int | None = None
    ) -> dict[int, float]:
        """Least cost to `dst` (Dijkstra) from every site, or from those not farther than `until`."""
        done: dict[int, float] = {}
        heap = [(0.0, dst)]
        while heap:
            distance, v = heapq.heappop(heap)
            if v in done:
                continue
            done[v] = distance
            if v == until:
                break
            for u, cost in self.incoming[v].items():
                if u not in done and (u, v) not in without:
                    heapq.heappush(heap, (distance + cost, u))
        return done

    def walk(self, src: int, dst: int, distances: Mapping[int, float], without: Set[Hop]) -> Path:
        """The lexicographically lowest of the fastest paths. Each step comes nearer, so there is no loop."""
        path, slack = [src], _EQUAL * distances[src]
        while path[-1] != dst:
            u = path[-1]
            path.append(
                min(
                    v
                    for v, cost in self.outgoing[u].items()
                    if (u, v) not in without
                    and distances.get(v, inf) < distances[u]
                    and cost + distances[v] <= distances[u] + slack
                )
            )
        return tuple(path)


def _disjoint_paths(
    graph: _Graph, src: int, dst: int, limit: int, distances: Mapping[int, float]
) -> tuple[Path, ...]:
    paths: list[Path] = []
    used: set[Hop] = set()
    while src in distances:
        paths.append(graph.walk(src, dst, distances, used))
        for u, v in pairwise(paths[-1]):
            used |= {(u, v), (v, u)}
        distances = graph.distances(dst, without=used, until=src)
    direct = (src, dst)
    if direct in paths[limit:]:
        paths[limit - 1] = direct
    return tuple(paths[:limit])
