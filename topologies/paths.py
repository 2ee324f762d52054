"""The paths that the network offers between any two sites."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from topologies.dscp import MAX_PATHS
from topologies.errors import UsageError
from topologies.model import Topology

Path = tuple[int, ...]
"""The sites from source to destination, both included."""

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
    size = len(topology.site_names)
    costs: list[dict[int, float]] = [{} for _ in range(size)]
    for (u, v), bps in topology.rates().items():
        costs[u][v] = 1 / bps
    sets = {}
    for dst in range(size):
        distances = _distances(costs, dst)
        for src in range(size):
            if src != dst:
                sets[src, dst] = _disjoint_paths(costs, src, dst, limit, distances)
    return dict(sorted(sets.items()))


def direct_path_number(paths: Mapping[tuple[int, int], tuple[Path, ...]], src: int, dst: int) -> int | None:
    """The number of the one-hop path between two sites, or None where no link joins them."""
    for number, path in enumerate(paths[src, dst]):
        if len(path) == 2:
            return number
    return None


def _disjoint_paths(
    costs: list[dict[int, float]], src: int, dst: int, limit: int, distances: dict[int, float]
) -> tuple[Path, ...]:
    paths: list[Path] = []
    left = costs
    while src in distances:
        paths.append(_walk(left, src, dst, distances))
        used = {frozenset(hop) for hop in zip(paths[-1], paths[-1][1:], strict=False)}
        left = [
            {v: cost for v, cost in row.items() if frozenset((u, v)) not in used}
            for u, row in enumerate(left)
        ]
        distances = _distances(left, dst, until=src)
    direct = (src, dst)
    if direct in paths[limit:]:
        paths[limit - 1] = direct
    return tuple(paths[:limit])


def _distances(costs: list[dict[int, float]], dst: int, until: int | None = None) -> dict[int, float]:
    """Least cost from every site to `dst` (Dijkstra), or from those not farther than `until`."""
    incoming: list[list[tuple[int, float]]] = [[] for _ in costs]
    for u, row in enumerate(costs):
        for v, cost in row.items():
            incoming[v].append((u, cost))
    done: dict[int, float] = {}
    heap = [(0.0, dst)]
    while heap:
        distance, v = heapq.heappop(heap)
        if v in done:
            continue
        done[v] = distance
        if v == until:
            break
        for u, cost in incoming[v]:
            if u not in done:
                heapq.heappush(heap, (distance + cost, u))
    return done


def _walk(costs: list[dict[int, float]], src: int, dst: int, distances: dict[int, float]) -> Path:
    """The lexicographically lowest of the fastest paths. Each step comes nearer, so there is no loop."""
    path, slack = [src], _EQUAL * distances[src]
    while path[-1] != dst:
        u = path[-1]
        path.append(
            min(
                v
                for v, cost in costs[u].items()
                if distances.get(v, float("inf")) < distances[u]
                and cost + distances[v] <= distances[u] + slack
            )
        )
    return tuple(path)
