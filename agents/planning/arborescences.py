"""Minimum-cost spanning arborescences (Chu and Liu 1965, Edmonds 1967), and growing shallow ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Arc = tuple[int, int]


def cheapest_arborescence(n: int, root: int, arcs: Sequence[Arc], costs: Sequence[float]) -> list[int] | None:
    """Sorted numbers of the arcs of a minimum-cost out-arborescence from `root`; None where a node is out of
    reach. Contracts cycles; among equal costs the lowest arc number.
    """
    tails = [u for u, _ in arcs]
    heads = [v for _, v in arcs]
    return _edmonds(n, root, tails, heads, list(costs))


def _edmonds(n: int, root: int, tails: list[int], heads: list[int], costs: list[float]) -> list[int] | None:
    best = [-1] * n
    for k, v in enumerate(heads):
        if v != root and tails[k] != v and (best[v] < 0 or costs[k] < costs[best[v]]):
            best[v] = k
    if any(best[v] < 0 for v in range(n) if v != root):
        return None
    group, groups, cyclic = _cycles(n, root, tails, best)
    if not any(cyclic):
        return sorted(best[v] for v in range(n) if v != root)
    inner = [k for k in range(len(heads)) if group[tails[k]] != group[heads[k]]]
    chosen = _edmonds(
        groups,
        group[root],
        [group[tails[k]] for k in inner],
        [group[heads[k]] for k in inner],
        [costs[k] - (costs[best[heads[k]]] if cyclic[group[heads[k]]] else 0.0) for k in inner],
    )
    if chosen is None:
        return None
    picked = [inner[k] for k in chosen]
    entered = {heads[k] for k in picked}
    picked += [best[v] for v in range(n) if v != root and cyclic[group[v]] and v not in entered]
    return sorted(picked)


def _cycles(n: int, root: int, tails: list[int], best: list[int]) -> tuple[list[int], int, list[bool]]:
    """Contract the cycles of the cheapest incoming arcs: (group of each node, groups, which are cycles)."""
    colour = [-1] * n
    group = [-1] * n
    cyclic: list[bool] = []
    for start in range(n):
        v = start
        while v != root and colour[v] < 0:
            colour[v] = start
            v = tails[best[v]]
        if v != root and colour[v] == start and group[v] < 0:
            while group[v] < 0:
                group[v] = len(cyclic)
                v = tails[best[v]]
            cyclic.append(True)
    for v in range(n):
        if group[v] < 0:
            group[v] = len(cyclic)
            cyclic.append(False)
    return group, len(cyclic), cyclic


def grow(
    root: int,
    outgoing: Sequence[Sequence[tuple[int, int]]],
    prices: Sequence[float],
    hop: Sequence[float],
    weight: float,
) -> tuple[list[int], float]:
    """A spanning out-tree grown from `root` like Prim's, always by the attachable arc (u, v) of least
    price + weight * (distance of u + hop); ties: lowest v, then u. Returns (arc numbers, depth).

    outgoing[u]  (v, arc number) of the arcs from u; every node must be reachable
    """
    distance = {root: 0.0}
    picked: list[int] = []
    heap = [(prices[k] + weight * hop[k], v, root, k) for v, k in outgoing[root]]
    heapq.heapify(heap)
    while heap:
        _, v, u, k = heapq.heappop(heap)
        if v in distance:
            continue
        picked.append(k)
        reach = distance[v] = distance[u] + hop[k]
        for w, arc in outgoing[v]:
            if w not in distance:
                heapq.heappush(heap, (prices[arc] + weight * (reach + hop[arc]), w, v, arc))
    return picked, max(distance.values())
