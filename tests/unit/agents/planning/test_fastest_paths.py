"""FAPT against an enumeration of all simple paths, on every connected graph of up to six nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise

import networkx as nx
import pytest

from agents.planning.base import NetworkView
from agents.planning.netstorm import level_scores
from agents.planning.routes import fastest_in_tree, follow

Arc = tuple[int, int]


def connected_graphs(max_nodes: int) -> list[nx.Graph]:
    return [
        graph
        for graph in nx.graph_atlas_g()
        if 2 <= graph.number_of_nodes() <= max_nodes and nx.is_connected(graph)
    ]


def simple_paths(neighbours: list[list[int]], path: list[int], dst: int) -> Iterator[tuple[int, ...]]:
    """In the published code's order: depth first, neighbours ascending."""
    if path[-1] == dst:
        yield tuple(path)
        return
    for step in neighbours[path[-1]]:
        if step not in path:
            yield from simple_paths(neighbours, [*path, step], dst)


def first_strict_minimum(
    costs: dict[Arc, Fraction], neighbours: list[list[int]], src: int, dst: int
) -> tuple[int, ...]:
    best: tuple[Fraction, tuple[int, ...]] | None = None
    for path in simple_paths(neighbours, [src], dst):
        cost = sum((costs[arc] for arc in pairwise(path)), Fraction(0))
        if best is None or cost < best[0]:
            best = (cost, path)
    assert best is not None
    return best[1]


@pytest.mark.parametrize("kind", ["few distinct rates, many ties", "asymmetric rates"])
def test_every_graph_of_up_to_six_nodes(kind: str) -> None:
    rng = random.Random(20)
    pool = [10, 20, 30] if kind.startswith("few") else list(range(20, 156))
    for number, graph in enumerate(connected_graphs(6) * 3):
        n = graph.number_of_nodes()
        rates: dict[Arc, int] = {}
        for u, v in graph.edges:
            rates[u, v] = rng.choice(pool)
            rates[v, u] = rates[u, v] if kind.startswith("few") else rng.choice(pool)
        exact = {arc: Fraction(1, rate) for arc, rate in rates.items()}
        costs = {arc: float(cost) for arc, cost in exact.items()}
        neighbours = [sorted(graph.adj[u]) for u in range(n)]
        best = {
            (u, v): first_strict_minimum(exact, neighbours, u, v)
            for u in range(n)
            for v in range(n)
            if u != v
        }
        for root in range(n):
            tree = fastest_in_tree(n, costs, root)
            for site in range(n):
                if site == root:
                    continue
                wanted = best[site, root]
                where = f"graph {number}, {site} -> {root}, rates {rates}"
                assert follow(tree.parents, site) == wanted, where
                assert tree.distance[site] == pytest.approx(float(sum(exact[a] for a in pairwise(wanted)))), (
                    where
                )
        _check_scores(n, exact, best, {arc: rate * 1e6 for arc, rate in rates.items()})


def _check_scores(
    n: int, exact: dict[Arc, Fraction], best: dict[Arc, tuple[int, ...]], rates: dict[Arc, float]
) -> None:
    """Q as the published code computes it: over the enumerated best paths root -> leaf, level by level."""
    scores = level_scores(NetworkView(n, rates))
    for root in range(n):
        levels: list[Fraction] = []
        for leaf in range(n):
            if leaf != root:
                for level, arc in enumerate(pairwise(best[root, leaf])):
                    levels += [Fraction(0)] * (level + 1 - len(levels))
                    levels[level] = max(levels[level], exact[arc])
        assert scores[root] == pytest.approx(float(1 / sum(levels)))


def test_ties_within_a_billionth_are_ties() -> None:
    costs = {(2, 0): 1.0, (0, 3): 1.0 + 4e-10, (2, 1): 1.0, (1, 3): 1.0}
    assert fastest_in_tree(4, costs, 3).parents[2] == 0
    costs[0, 3] = 1.0 + 1e-8
    assert fastest_in_tree(4, costs, 3).parents[2] == 1


def test_links_far_cheaper_than_the_tie_tolerance_make_no_loop() -> None:
    costs = {(0, 1): 1e-12, (1, 0): 1e-12, (0, 2): 1.0, (1, 2): 1.0}
    tree = fastest_in_tree(3, costs, 2)
    for site in (0, 1):
        assert follow(tree.parents, site)[-1] == 2


def test_no_path() -> None:
    tree = fastest_in_tree(3, {(0, 1): 1.0}, 1)
    assert tree.parents == (1, None, None)
    assert tree.distance[2] == float("inf")
