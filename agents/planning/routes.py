"""Fastest paths with the project's tie rule: costs within 1e-9 relative are equal, the lowest index wins."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TIE = 1e-9


def at_most(a: float, b: float) -> bool:
    """a <= b, where values within 1e-9 relative are equal."""
    return a <= b or math.isclose(a, b, rel_tol=TIE, abs_tol=0.0)


@dataclass(frozen=True)
class InTree:
    """Fastest paths from every site to one root.

    distance[v]  cost of the fastest path from v to the root (inf when there is none)
    parents[v]   the next site on it; None at the root and where there is no path
    """

    root: int
    distance: tuple[float, ...]
    parents: tuple[int | None, ...]


def fastest_in_tree(n: int, costs: Mapping[tuple[int, int], float], root: int) -> InTree:
    """Dijkstra over the reversed arcs from `root`; `costs` are positive, of sending u -> v.

    parent(v) is the lowest neighbour u with w(v,u) + d(u) = d(v). Following parents gives the
    lexicographically smallest of the fastest paths, the one that an enumeration in ascending order keeps as
    its first strict minimum.
    """
    outgoing: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    incoming: list[list[tuple[int, float]]] = [[] for _ in range(n)]
    for (u, v), cost in costs.items():
        outgoing[u].append((v, cost))
        incoming[v].append((u, cost))
    distance = [math.inf] * n
    distance[root] = 0.0
    heap = [(0.0, root)]
    while heap:
        d, u = heapq.heappop(heap)
        if d > distance[u]:
            continue
        for v, cost in incoming[u]:
            if d + cost < distance[v]:
                distance[v] = d + cost
                heapq.heappush(heap, (d + cost, v))
    parents: list[int | None] = [None] * n
    for v in range(n):
        if v == root or math.isinf(distance[v]):
            continue
        # d(u) < d(v) keeps the parents acyclic where arcs are cheaper than the tie tolerance.
        parents[v] = min(
            u
            for u, cost in outgoing[v]
            if distance[u] < distance[v] and at_most(cost + distance[u], distance[v])
        )
    return InTree(root, tuple(distance), tuple(parents))


def follow(parents: Sequence[int | None], start: int) -> tuple[int, ...]:
    """The sites from `start` to the root of the tree, both included."""
    path = [start]
    step = parents[start]
    while step is not None:
        path.append(step)
        step = parents[step]
    return tuple(path)
