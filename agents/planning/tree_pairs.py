"""Packing pairs of an in-tree and an out-tree with a common root, for links of unequal directions (see
`packing`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.planning.arborescences import Arc, cheapest_arborescence, grow
from agents.planning.base import Parents
from agents.planning.programme import Solution, Vector, minimise
from agents.planning.spanning_trees import THETAS, PackedTree, Packing

IN, OUT = 0, 1
Column = tuple[int, int, tuple[int, ...]]
"""(root, IN or OUT, sorted numbers of the arcs)."""

LATENCY_ROOTS = 6
MORE_ROOTS = 4


@dataclass
class _Network:
    """arcs sorted; an in-tree is an out-tree of the arcs reversed, which have the same numbers."""

    n: int
    arcs: list[Arc]
    capacity: Vector
    hop: Vector
    roots: list[int] = field(default_factory=list)
    columns: dict[Column, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oriented = ([(v, u) for u, v in self.arcs], self.arcs)
        self.outgoing: list[list[list[tuple[int, int]]]] = []
        for arcs in self.oriented:
            lists: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
            for k, (u, v) in enumerate(arcs):
                lists[u].append((v, k))
            self.outgoing.append(lists)

    def cheapest(self, root: int, kind: int, prices: Vector) -> tuple[int, ...]:
        """The cheapest tree; the tiny term prefers fast links among equals."""
        tree = cheapest_arborescence(
            self.n, root, self.oriented[kind], (prices + 1e-9 * self.hop / self.hop.mean()).tolist()
        )
        assert tree is not None, "the network is connected"
        return tuple(tree)

    def add(self, root: int, kind: int, arcs: tuple[int, ...]) -> bool:
        column = (root, kind, arcs)
        if column in self.columns:
            return False
        self.columns[column] = None
        return True

    def depth(self, column: Column) -> float:
        """Seconds of its longest way."""
        root, kind, arcs = column
        distance = {root: 0.0}
        below: dict[int, list[tuple[int, float]]] = {}
        for k in arcs:
            u, v = self.oriented[kind][k]
            below.setdefault(u, []).append((v, float(self.hop[k])))
        order = [root]
        for u in order:
            for v, length in below.get(u, ()):
                distance[v] = distance[u] + length
                order.append(v)
        return max(distance.values())

    def parents(self, column: Column) -> Parents:
        parents: list[int | None] = [None] * self.n
        _, kind, arcs = column
        for k in arcs:
            u, v = self.oriented[kind][k]
            parents[v] = u
        return tuple(parents)

    def solve(self, costs: Sequence[float], root_cost: float, total: float | None) -> Solution | None:
        """Variables: one a column, one rate a root. Rows: arcs; per root in = rate, out = rate; the total."""
        place = {root: k for k, root in enumerate(self.roots)}
        count = len(self.columns)
        use: tuple[list[int], list[int]] = ([], [])
        balance: tuple[list[int], list[int], list[float]] = ([], [], [])

        def entry(row: int, column: int, value: float) -> None:
            balance[0].append(row)
            balance[1].append(column)
            balance[2].append(value)

        for k, (root, kind, arcs) in enumerate(self.columns):
            use[0].extend(arcs)
            use[1].extend([k] * len(arcs))
            entry(2 * place[root] + kind, k, 1.0)
        rows = 2 * len(self.roots)
        for root_place in range(len(self.roots)):
            entry(2 * root_place + IN, count + root_place, -1.0)
            entry(2 * root_place + OUT, count + root_place, -1.0)
            if total is not None:
                entry(rows, count + root_place, 1.0)
        right = [0.0] * rows + ([] if total is None else [total])
        return minimise([*costs, *[root_cost] * len(self.roots)], self.capacity, use, right, balance)


def pack_tree_pairs(
    n: int,
    rates: Mapping[Arc, float],
    hops: Mapping[Arc, float],
    *,
    gap: float,
    rounds: int,
    latency_rounds: int,
    roots: int,
) -> Packing:
    """Tree pairs of largest total rate, and among those packings one of little latency.

    rates   of the directed arcs, all above zero; every site reaches every other
    hops    seconds that a chunk takes over each
    gap     stop when the rate is proven to be within this of the best over all roots
    rounds  most linear programmes for the rate, and `latency_rounds` for the latency
    roots   how many roots to begin with (those of least latency); others join when they would raise the rate
    """
    arcs = sorted(rates)
    scale = 100.0 / (math.fsum(rates.values()) / len(arcs))
    unit = math.fsum(hops.values()) / len(arcs)
    network = _Network(
        n, arcs, np.array([rates[arc] * scale for arc in arcs]), np.array([hops[arc] / unit for arc in arcs])
    )
    by_latency = _by_latency(network)
    network.roots = by_latency[:roots]
    _fill_pool(network)
    rate, x, upper = _largest_rate(network, gap, rounds)
    quick = _least_latency(network, rate, latency_rounds, by_latency[:LATENCY_ROOTS])
    trees = _pair(network, x if quick is None else quick, rate)
    return Packing(
        rate / scale,
        upper / scale,
        tuple(PackedTree(tree.root, tree.rate / scale, tree.up, tree.down) for tree in trees),
    )


def _by_latency(network: _Network) -> list[int]:
    nothing, hop = [0.0] * len(network.arcs), network.hop.tolist()

    def latency(root: int) -> float:
        return sum(grow(root, network.outgoing[kind], nothing, hop, 1.0)[1] for kind in (IN, OUT))

    depth = [latency(root) for root in range(network.n)]
    return sorted(range(network.n), key=lambda v: (depth[v], v))


def _fill_pool(network: _Network) -> None:
    load = np.zeros(len(network.arcs))
    for root in network.roots:
        load[:] = 0.0
        for _ in range(max(6, network.n // 2)):
            z = load / network.capacity
            weights = np.exp(8.0 * (z - z.max())) / network.capacity
            for kind in (IN, OUT):
                tree = network.cheapest(root, kind, weights)
                network.add(root, kind, tree)
                load[list(tree)] += 1.0


def _largest_rate(network: _Network, gap: float, rounds: int) -> tuple[float, Vector, float]:
    """Column generation over the current roots; when they are done all roots are priced once more.

    Returns the rate, what each column carries, and the bound.
    """
    within, best_prices = math.inf, None
    while True:
        solution = network.solve([0.0] * len(network.columns), -1.0, None)
        assert solution is not None, "x = 0 is feasible"
        rate, prices = -solution.value, solution.at_most
        x = solution.x[: len(network.columns)]
        points = [prices] if best_prices is None else [prices, 0.4 * prices + 0.6 * best_prices]
        added = False
        for point in points:
            least = math.inf
            for root in network.roots:
                price = 0.0
                for kind in (IN, OUT):
                    tree = network.cheapest(root, kind, point)
                    price += float(point[list(tree)].sum())
                    added |= network.add(root, kind, tree)
                least = min(least, price)
            if least > 0:
                bound = float(network.capacity @ point) / least
                if bound < within:
                    within, best_prices = bound, point / least
        rounds -= 1
        if within / rate - 1 >= gap and added and rounds > 0:
            continue
        upper, joined = _price_all_roots(network, within, best_prices)
        if not joined or rounds <= 0 or upper / rate - 1 < gap:
            return rate, x, max(upper, rate)
        within = math.inf


def _price_all_roots(network: _Network, within: float, prices: Vector | None) -> tuple[float, bool]:
    """A bound over all roots from one over the current ones, and whether roots joined that would raise it."""
    if prices is None:
        return math.inf, False
    offers = []
    least = 1.0
    for root in range(network.n):
        if root in network.roots:
            continue
        trees = [(kind, network.cheapest(root, kind, prices)) for kind in (IN, OUT)]
        price = math.fsum(float(prices[list(tree)].sum()) for _, tree in trees)
        least = min(least, price)
        if price < 1 - 1e-9:
            offers.append((price, root, trees))
    for _, root, trees in sorted(offers)[:MORE_ROOTS]:
        network.roots.append(root)
        for kind, tree in trees:
            network.add(root, kind, tree)
    return within / least, bool(offers)


def _least_latency(network: _Network, rate: float, rounds: int, central: list[int]) -> Vector | None:
    """x of least sum L x at this rate, L the depth of a column; proposals as for spanning trees."""
    hop = network.hop.tolist()
    latency = [network.depth(column) for column in network.columns]
    x: Vector | None = None
    for _ in range(rounds):
        solution = None
        for target in (rate, rate * (1 - 1e-7), rate * (1 - 1e-6)):
            solution = network.solve(latency, 0.0, target)
            if solution is not None:
                break
        if solution is None:
            return x
        count = len(network.columns)
        x = solution.x[:count]
        used = [root for k, root in enumerate(network.roots) if solution.x[count + k] > 1e-9 * rate]
        place = {root: k for k, root in enumerate(network.roots)}
        prices = solution.at_most.tolist()
        added = False
        for root in dict.fromkeys((*used, *central)):
            if root not in place:
                continue
            for kind in (IN, OUT):
                wanted = float(solution.equal[2 * place[root] + kind]) - 1e-9
                for theta in THETAS:
                    tree, depth = grow(root, network.outgoing[kind], prices, hop, theta)
                    price = depth + math.fsum(prices[k] for k in tree)
                    if price < wanted and network.add(root, kind, tuple(sorted(tree))):
                        latency.append(depth)
                        added = True
        if not added:
            break
    return x


def _pair(network: _Network, x: Vector, rate: float) -> list[PackedTree]:
    """Match in-trees with out-trees of the same root: the deepest with the shallowest (north-west corner)."""
    kinds: dict[int, tuple[list[tuple[float, float, Column]], list[tuple[float, float, Column]]]] = {}
    for k, column in enumerate(network.columns):
        if k < len(x) and x[k] >= 1e-6 * rate:
            entry = (network.depth(column), float(x[k]), column)
            kinds.setdefault(column[0], ([], []))[column[1]].append(entry)
    trees = []
    for root, (ins, outs) in sorted(kinds.items()):
        ins.sort(key=lambda entry: (-entry[0], entry[2]))
        outs.sort(key=lambda entry: (entry[0], entry[2]))
        i = o = 0
        left_in = left_out = 0.0
        while i < len(ins) and o < len(outs):
            left_in = left_in or ins[i][1]
            left_out = left_out or outs[o][1]
            carried = min(left_in, left_out)
            if carried >= 1e-6 * rate:
                up, down = network.parents(ins[i][2]), network.parents(outs[o][2])
                trees.append(PackedTree(root, carried, up, down))
            left_in, left_out = left_in - carried, left_out - carried
            if left_in <= 1e-9 * rate:
                i, left_in = i + 1, 0.0
            if left_out <= 1e-9 * rate:
                o, left_out = o + 1, 0.0
    return sorted(trees, key=lambda tree: (-tree.rate, tree.root))
