"""The paths that the network offers between any two sites."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
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
_NEARLY_EQUAL = 1e-6
"""More than enough for equal costs to add up to along a path."""


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
    distances = [graph.distances(dst) for dst in range(graph.size)]
    sets = {}
    for src in range(graph.size):
        ahead = [distances[v][src] for v in range(graph.size)]
        for dst in range(graph.size):
            if src != dst:
                sets[src, dst] = _disjoint_paths(graph, src, dst, limit, distances[dst], ahead)
    return sets


def direct_path_number(paths: Mapping[tuple[int, int], tuple[Path, ...]], src: int, dst: int) -> int | None:
    """The number of the one-hop path between two sites, or None where no link joins them."""
    for number, path in enumerate(paths[src, dst]):
        if len(path) == 2:
            return number
    return None


def hops_of(topology: Topology, links: Iterable[int]) -> frozenset[Hop]:
    """Both directions of links that are given by their index in the topology's list."""
    ends = [[topology.index(name) for name in topology.links[i].endpoints] for i in links]
    return frozenset(hop for u, v in ends for hop in ((u, v), (v, u)))


def is_intact(path: Path, without: Container[Hop]) -> bool:
    """Whether none of the path's hops is among those."""
    return not any(hop in without for hop in pairwise(path))


def fastest_without(
    topology: Topology, pairs: Iterable[tuple[int, int]], without: Container[Hop]
) -> dict[tuple[int, int], Path | None]:
    """The fastest path of each ordered pair that uses none of those hops; None where there is no way left.

    Cost and ties as in `path_sets`.
    """
    graph = _Graph(topology)
    distances: dict[int, dict[int, float]] = {}
    found: dict[tuple[int, int], Path | None] = {}
    for src, dst in pairs:
        if dst not in distances:
            distances[dst] = graph.distances_between(None, dst, without, [0.0] * graph.size)
        reachable = src in distances[dst]
        found[src, dst] = graph.walk(src, dst, distances[dst], without) if reachable else None
    return found


def primaries(
    topology: Topology, sets: Mapping[tuple[int, int], Sequence[Path]], down: frozenset[int] = frozenset()
) -> dict[tuple[int, int], Path | None]:
    """Where the packets of absent path numbers go: the first intact path of each pair's set.

    Where no path of the set is intact it is the fastest one that is left, and None where the cut links
    part the two sites.

    Args:
        topology, sets: as declared.
        down: indexes (in `topology.links`) of the links that are cut.
    """
    cut = hops_of(topology, down)
    found: dict[tuple[int, int], Path | None] = {
        pair: next((path for path in paths if is_intact(path, cut)), None)
        for pair, paths in sets.items()
    }
    return found | fastest_without(topology, [pair for pair, path in found.items() if path is None], cut)


class _Graph:
    """Costs (1/rate) of the directions of all links, by where they begin and by where they end."""

    def __init__(self, topology: Topology) -> None:
        self.size = len(topology.site_names)
        self.outgoing: list[dict[int, float]] = [{} for _ in range(self.size)]
        self.incoming: list[dict[int, float]] = [{} for _ in range(self.size)]
        for (u, v), bps in topology.rates().items():
            self.outgoing[u][v] = self.incoming[v][u] = 1 / bps

    def distances(self, dst: int) -> dict[int, float]:
        """Least cost to `dst` from every site (Dijkstra)."""
        return self.distances_between(None, dst, (), [0.0] * self.size)

    def distances_between(
        self, src: int | None, dst: int, without: Container[Hop], ahead: Sequence[float]
    ) -> dict[int, float]:
        """Least cost to `dst` from `src` and from every site that a fastest path may pass (A*).

        `ahead` is the least cost from `src` to each site while no hop is left out: never more than with some
        left out, so a site that it rules out is none of a fastest path.
        """
        done: dict[int, float] = {}
        heap = [(ahead[dst], 0.0, dst)]
        worst = inf
        while heap:
            estimate, distance, v = heapq.heappop(heap)
            if estimate > worst:
                break
            if v in done:
                continue
            done[v] = distance
            if v == src:
                worst = distance * (1 + _NEARLY_EQUAL)
            for u, cost in self.incoming[v].items():
                if u not in done and (u, v) not in without:
                    heapq.heappush(heap, (distance + cost + ahead[u], distance + cost, u))
        return done

    def walk(self, src: int, dst: int, distances: Mapping[int, float], without: Container[Hop]) -> Path:
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
    graph: _Graph,
    src: int,
    dst: int,
    limit: int,
    distances: Mapping[int, float],
    ahead: Sequence[float],
) -> tuple[Path, ...]:
    paths: list[Path] = []
    used: set[Hop] = set()
    while src in distances and len(paths) < limit:
        paths.append(graph.walk(src, dst, distances, used))
        for u, v in pairwise(paths[-1]):
            used |= {(u, v), (v, u)}
        if len(paths) < limit:
            distances = graph.distances_between(src, dst, used, ahead)
    direct = (src, dst)
    if dst in graph.outgoing[src] and direct not in paths:
        paths[-1] = direct
    return tuple(paths)
