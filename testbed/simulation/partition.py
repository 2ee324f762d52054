"""The partition bound of a full-duplex network, exactly, and the smallest directed cut.

For a partition P of the sites in p >= 2 parts, every element needs at least p-1 transfers between parts to
be summed and p-1 to be spread, and those transfers share the capacity that crosses P (Tutte, Nash-Williams;
docs/simulation.md, "The bound"). The best partition is found by Newton's iteration on the rate; each step minimises
cap(P) - rate (|P|-1)  by n minimum cuts (Cunningham, Optimal attack and reinforcement of a network, 1985; Barahona,
Separation of partition inequalities, 2000). Capacities are integers and the rate a fraction, so the answer
is exact, not within a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd

from testbed.simulation.maxflow import FlowGraph

Parts = tuple[tuple[int, ...], ...]


def strength(n: int, capacity: Mapping[tuple[int, int], int]) -> tuple[Fraction, Parts]:
    """Minimum over partitions P, |P| >= 2, of cap(P)/(|P|-1), and the finest partition that attains it.

    `capacity` maps pairs (u, v), u < v, to integers; the graph must be connected and n at least 2.
    """
    divisor = gcd(*capacity.values()) or 1
    edges = [(u, v, c // divisor) for (u, v), c in sorted(capacity.items())]
    parts: Parts = tuple((v,) for v in range(n))
    rate = _ratio(parts, edges)
    degrees = [0] * n
    for u, v, c in edges:
        degrees[u] += c
        degrees[v] += c
    rate = min(rate, Fraction(min(degrees)))
    while True:
        parts, optimal = _best_partition(n, edges, rate)
        if optimal:
            return rate * divisor, parts
        rate = _ratio(parts, edges)


def crossing(parts: Sequence[Sequence[int]], capacity: Mapping[tuple[int, int], int]) -> int:
    """Sum of the capacities of the pairs that lie in different parts."""
    part_of = {v: k for k, part in enumerate(parts) for v in part}
    return sum(c for (u, v), c in capacity.items() if part_of[u] != part_of[v])


def smallest_directed_cut(
    n: int, capacity: Mapping[tuple[int, int], int]
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Least capacity that leaves a set of sites (every site must send out and take in each element once).

    Returns (value, sites on the sending side, sites on the receiving side).
    """
    best: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
    for v in range(1, n):
        for source, sink in ((0, v), (v, 0)):
            graph = FlowGraph(n)
            for (a, b), c in sorted(capacity.items()):
                graph.add(a, b, c)
            value = graph.max_flow(source, sink)
            if best is None or value < best[0]:
                seen = graph.reachable(source)
                sending = tuple(k for k in range(n) if seen[k])
                best = (value, sending, tuple(k for k in range(n) if not seen[k]))
    assert best is not None
    return best


def _ratio(parts: Parts, edges: Sequence[tuple[int, int, int]]) -> Fraction:
    return Fraction(crossing(parts, {(u, v): c for u, v, c in edges}), len(parts) - 1)


def _best_partition(n: int, edges: Sequence[tuple[int, int, int]], rate: Fraction) -> tuple[Parts, bool]:
    """A partition minimising cap(P) - rate (|P|-1), and whether that minimum is 0 (then `rate` is the
    strength).

    Greedy over the sites for max y(V) with y(S) <= cap(delta(S)) - 2 rate for every S: the k-th value is one
    minimum cut. Sets where y is tight are merged, for a minimiser can always be taken as a union of them.
    Everything is multiplied by the denominator of the rate, so all numbers are integers. Taking the smallest
    minimum cut each time makes the tight sets the finest partition that attains the minimum.
    """
    scale, double = rate.denominator, 2 * rate.numerator
    adjacency: list[dict[int, int]] = [{} for _ in range(n)]
    for u, v, c in edges:
        adjacency[u][v] = adjacency[u].get(v, 0) + c * scale
        adjacency[v][u] = adjacency[v].get(u, 0) + c * scale
    sets: list[list[int]] = []
    values: list[int] = []
    for j in range(n):
        node = {v: k + 1 for k, members in enumerate(sets) for v in members}
        node[j] = 0
        sink = len(sets) + 1
        between: dict[tuple[int, int], int] = {}
        for v, a in node.items():
            for w, c in adjacency[v].items():
                b = node.get(w, sink)
                if a < b:
                    between[a, b] = between.get((a, b), 0) + c
        graph = FlowGraph(sink + 1)
        for (a, b), c in sorted(between.items()):
            graph.add(a, b, c, c)
        for k, value in enumerate(values, start=1):
            if value > 0:
                graph.add(0, k, value)
            elif value < 0:
                graph.add(k, sink, -value)
        least = graph.max_flow(0, sink) - sum(value for value in values if value > 0) - double
        seen = graph.reachable(0)
        merged = [j] + [v for k, members in enumerate(sets, start=1) if seen[k] for v in members]
        total = least + sum(value for k, value in enumerate(values, start=1) if seen[k])
        keep = [k for k in range(len(sets)) if not seen[k + 1]]
        sets = [sets[k] for k in keep] + [merged]
        values = [values[k] for k in keep] + [total]
    parts = tuple(sorted(tuple(sorted(members)) for members in sets))
    return parts, sum(values) == -double
