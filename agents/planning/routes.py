"""Fastest paths with the project's tie rule: costs within 1e-9 relative are equal, the lowest index wins."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Adjacency = list[list[tuple[int, float]]]

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


class Arcs:
    """The arcs of a network by their ends, to search it from many roots; `costs` are of sending u -> v."""

    def __init__(self, n: int, costs: Mapping[tuple[int, int], float]) -> None:
        self.n = n
        self.outgoing: Adjacency = [[] for _ in range(n)]
        self.incoming: Adjacency = [[] for _ in range(n)]
        for (u, v), cost in sorted(costs.items()):
            self.outgoing[u].append((v, cost))
            self.incoming[v].append((u, cost))

    def reversed(self) -> Arcs:
        """The same arcs the other way round: v -> u at the cost of u -> v."""
        other = Arcs(self.n, {})
        other.outgoing, other.incoming = self.incoming, self.outgoing
        return other

    def fastest_in_tree(self, root: int) -> InTree:
        """Dijkstra over the reversed arcs from `root`; costs are positive.

        parent(v) is the lowest neighbour u with w(v,u) + d(u) = d(v). Following parents gives the
        lexicographically smallest of the fastest paths, the one that an enumeration in ascending order keeps
        as its first strict minimum.
        """
        incoming = self.incoming
        distance = [math.inf] * self.n
        distance[root] = 0.0
        heap = [(0.0, root)]
        while heap:
            d, u = heapq.heappop(heap)
            if d > distance[u]:
                continue
            for v, cost in incoming[u]:
                further = d + cost
                if further < distance[v]:
                    distance[v] = further
                    heapq.heappush(heap, (further, v))
        parents: list[int | None] = [None] * self.n
        for v, arcs in enumerate(self.outgoing):
            d = distance[v]
            if v == root or math.isinf(d):
                continue
            for u, cost in arcs:  # ascending: the first is the lowest
                # d(u) < d(v) keeps the parents acyclic where arcs are cheaper than the tie tolerance.
                if distance[u] < d and at_most(cost + distance[u], d):
                    parents[v] = u
                    break
        return InTree(root, tuple(distance), tuple(parents))


def fastest_in_tree(n: int, costs: Mapping[tuple[int, int], float], root: int) -> InTree:
    """`Arcs.fastest_in_tree` for a single root."""
    return Arcs(n, costs).fastest_in_tree(root)


def follow(parents: Sequence[int | None], start: int) -> tuple[int, ...]:
    """The sites from `start` to the root of the tree, both included."""
    path = [start]
    step = parents[start]
    while step is not None:
        path.append(step)
        step = parents[step]
    return tuple(path)
