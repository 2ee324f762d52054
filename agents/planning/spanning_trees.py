"""Packing spanning trees into a full-duplex network whose two directions are equal (see `packing`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.planning.arborescences import grow
from agents.planning.base import Parents
from agents.planning.programme import Solution, Vector, minimise

Edge = tuple[int, int]
Column = tuple[int, ...]
"""A spanning tree as the sorted numbers of its edges."""

# Weights of depth against price in the trees that are proposed to the second programme.
THETAS = (2.0, 1.0, 0.5, 0.2, 0.05)
PROPOSED_ROOTS = 12


@dataclass(frozen=True)
class PackedTree:
    """One tree pair of a packing: rate in the capacities' unit; up and down are parents towards the root."""

    root: int
    rate: float
    up: Parents
    down: Parents


@dataclass(frozen=True)
class Packing:
    """rate: what the trees carry together; upper_bound: no packing carries more."""

    rate: float
    upper_bound: float
    trees: tuple[PackedTree, ...]


@dataclass
class _Graph:
    """edges sorted; capacity and seconds per chunk of each (the mean of its two directions)."""

    n: int
    edges: list[Edge]
    capacity: Vector
    hop: list[float]
    columns: dict[Column, None] = field(default_factory=dict)

    def kruskal(self, costs: Sequence[float]) -> Column:
        """The cheapest spanning tree; ties go to the shorter hop, then the lower number."""
        above = list(range(self.n))
        picked: list[int] = []
        for e in sorted(range(len(self.edges)), key=lambda e: (costs[e], self.hop[e], e)):
            u, v = self.edges[e]
            while above[u] != u:
                above[u] = above[above[u]]
                u = above[u]
            while above[v] != v:
                above[v] = above[above[v]]
                v = above[v]
            if u != v:
                above[u] = v
                picked.append(e)
                if len(picked) == self.n - 1:
                    break
        return tuple(sorted(picked))

    def add(self, column: Column) -> bool:
        """False when it is there already."""
        if column in self.columns:
            return False
        self.columns[column] = None
        return True

    @property
    def use(self) -> tuple[list[int], list[int]]:
        rows = [e for column in self.columns for e in column]
        return rows, [k for k, column in enumerate(self.columns) for _ in column]

    def centre(self, column: Column) -> tuple[int, float, Parents]:
        """The site of least eccentricity within a tree (lowest on ties), that eccentricity, the parents."""
        adjacent: list[list[tuple[int, float]]] = [[] for _ in range(self.n)]
        for e in column:
            u, v = self.edges[e]
            adjacent[u].append((v, self.hop[e]))
            adjacent[v].append((u, self.hop[e]))
        one = _farthest(_walk(adjacent, 0)[0])
        there, _ = _walk(adjacent, one)
        back, _ = _walk(adjacent, _farthest(there))
        radius = [max(a, b) for a, b in zip(there, back, strict=True)]
        least = min(radius)
        root = next(v for v in range(self.n) if radius[v] <= least * (1 + 1e-9))
        return root, radius[root], _walk(adjacent, root)[1]


def _walk(adjacent: list[list[tuple[int, float]]], start: int) -> tuple[list[float], Parents]:
    distance = [0.0] * len(adjacent)
    parents: list[int | None] = [None] * len(adjacent)
    order = [start]
    for u in order:
        for v, length in adjacent[u]:
            if v != parents[u]:
                distance[v], parents[v] = distance[u] + length, u
                order.append(v)
    return distance, tuple(parents)


def _farthest(distance: list[float]) -> int:
    return max(range(len(distance)), key=lambda v: (distance[v], -v))


def pack_spanning_trees(
    n: int,
    rates: Mapping[Edge, float],
    hops: Mapping[Edge, float],
    *,
    gap: float,
    rounds: int,
    latency_rounds: int,
) -> Packing:
    """Spanning trees of largest total rate, and among those packings one of little latency.

    rates           of the edges (u, v), u < v: connected, all above zero
    hops            seconds that a chunk takes over each
    gap             stop when the rate is proven to be within this of the best
    rounds          most linear programmes for the rate, and `latency_rounds` for the latency
    """
    edges = sorted(rates)
    scale = 100.0 / (math.fsum(rates.values()) / len(edges))
    unit = math.fsum(hops.values()) / len(edges)
    graph = _Graph(n, edges, np.array([rates[e] * scale for e in edges]), [hops[e] / unit for e in edges])
    _fill_pool(graph)
    solution, upper = _largest_rate(graph, gap, rounds)
    rate = -solution.value
    x = _least_latency(graph, rate, latency_rounds)
    if x is None:
        x = solution.x
    chosen = [
        (float(x[k]), column) for k, column in enumerate(graph.columns) if k < len(x) and x[k] >= 1e-6 * rate
    ]
    trees = []
    for carried, column in sorted(chosen, key=lambda item: (-item[0], item[1])):
        root, _, parents = graph.centre(column)
        trees.append(PackedTree(root, carried / scale, parents, parents))
    return Packing(rate / scale, upper / scale, tuple(trees))


def _fill_pool(graph: _Graph) -> None:
    """Trees under multiplicative weights of their load: 4n of them nearly end the first programme."""
    load = np.zeros(len(graph.edges))
    for k in range(max(60, 4 * graph.n)):
        z = load / graph.capacity
        weights = np.exp(8.0 * (z - z.max())) / graph.capacity
        column = graph.kruskal(weights.tolist())
        graph.add(column)
        load[list(column)] += 1.0
        if k % 20 == 19:
            load /= z.max() or 1.0


def _largest_rate(graph: _Graph, gap: float, rounds: int) -> tuple[Solution, float]:
    """Column generation; the spanning tree of least price is the column wanted most."""
    upper, best_prices = math.inf, None
    while True:
        solution = minimise([-1.0] * len(graph.columns), graph.capacity, graph.use)
        assert solution is not None, "x = 0 is feasible"
        rate, prices = -solution.value, solution.at_most
        points = [prices]
        if best_prices is not None:
            points += [(1 - a) * prices + a * best_prices for a in (0.5, 0.8)]
        added = False
        for point in points:
            column = graph.kruskal(point.tolist())
            price = float(point[list(column)].sum())
            if price > 0:
                bound = float(graph.capacity @ point) / price
                if bound < upper:
                    upper, best_prices = bound, point / price
            if float(prices[list(column)].sum()) < 1 - 1e-9:
                added |= graph.add(column)
        rounds -= 1
        if upper / rate - 1 < gap or not added or rounds <= 0:
            return solution, max(upper, rate)


def _least_latency(graph: _Graph, rate: float, rounds: int) -> Vector | None:
    """x of least sum L x at this rate, L = up and down again; None when there is nothing to choose.

    Finding the best column is NP-hard (a spanning tree of bounded depth), so trees are proposed that weigh
    depth against price, and those that would improve the programme come in.
    """
    outgoing: list[list[tuple[int, int]]] = [[] for _ in range(graph.n)]
    for e, (u, v) in enumerate(graph.edges):
        outgoing[u].append((v, e))
        outgoing[v].append((u, e))
    roots = _central(graph, outgoing)
    latency = [2 * graph.centre(column)[1] for column in graph.columns]
    x: Vector | None = None
    for _ in range(rounds):
        count = len(graph.columns)
        solution = None
        for target in (rate, rate * (1 - 1e-7), rate * (1 - 1e-6)):
            balance = ([0] * count, list(range(count)), [1.0] * count)
            solution = minimise(latency, graph.capacity, graph.use, [target], balance)
            if solution is not None:
                break
        if solution is None:
            return x
        x = solution.x
        prices, wanted = solution.at_most.tolist(), float(solution.equal[0]) - 1e-9
        added = False
        for root in roots:
            for theta in THETAS:
                column = tuple(sorted(grow(root, outgoing, prices, graph.hop, theta)[0]))
                if column in graph.columns:
                    continue
                length = 2 * graph.centre(column)[1]
                if length + math.fsum(prices[e] for e in column) < wanted:
                    graph.add(column)
                    latency.append(length)
                    added = True
        if not added:
            break
    return x


def _central(graph: _Graph, outgoing: list[list[tuple[int, int]]]) -> list[int]:
    """The sites of least eccentricity in the whole graph."""
    nothing = [0.0] * len(graph.edges)
    # Grown by depth alone, Prim's tree is Dijkstra's.
    depth = [grow(root, outgoing, nothing, graph.hop, 1.0)[1] for root in range(graph.n)]
    return sorted(range(graph.n), key=lambda v: (depth[v], v))[:PROPOSED_ROOTS]
