"""`greedw`: one tree of least modelled time, built anew from the current estimates.

Source: Wang et al., "GreedW", IEEE Transactions on Computers 2024 (doi 10.1109/TC.2023.3343110). Its
abstract names the two mechanisms: each iteration a communication tree of least cost is built greedily, and
each worker's batch is adapted so that all finish together (`agents.planning.batches`). The cost and the rule
of the tree are not published; what follows is a reconstruction around the abstract.

Model. Site v is ready at f_v; sending the model from u to v takes l(u,v) = delay + M / b(u,v), b the slowest
link on the way; adding takes gamma. A site takes in one child at a time, in the order in which they finish:
    fin(v) = f_v; for its children u by fin(u):  fin(v) = max(fin(v), fin(u)) + l(u,v) + gamma
and fin(root) is the time of the aggregation. Results go down the same tree.

Builders, N sites: * E  earliest merge, as literal as the abstract allows: all sites alive with R_v = f_v;
N-1 times the ordered
     pair (u, v) of least max(R_u, R_v) + l(u,v) + gamma (ties: smaller l, then indexes) merges: u sends to v
     and leaves, R_v is that time. It fixes survivors without looking ahead and can lose to a star.
* P  Prim: from a root, always the cheapest arc into the tree. S  shortest paths to a root. * X  a broadcast
from the root by the arc that completes earliest, one transfer at a time per site, reversed. * the star to
each site.

`literal` is E. `portfolio` (the default) evaluates all of them, P, S, X and the star with every root, and
takes the least fin; the first in the order P, S, X, E, star among equals, and the lowest root.

The planner keeps no state: in an experiment it is asked anew for each collective (`policy: {every: 1}`, set by
itself), with the rates and the sites' ready times f_v of the last one; an equal plan changes nothing.
Chunks follow each other along the tree; without that pipelining, as in the model, one
sets chunk_elements to the model's size. Two hops over the same link are not charged for sharing it.

Score: M / fin in Mbit/s.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agents.planning.base import NetworkView, Parents, Plan, Tree
from agents.planning.options import number, word
from agents.planning.routes import TIE

METHODS = ("portfolio", "literal")


@dataclass(frozen=True)
class Costs:
    """link[u][v]: seconds to send everything from u to v (0 on the diagonal); ready[v]: f_v; merge: gamma."""

    link: tuple[tuple[float, ...], ...]
    ready: tuple[float, ...]
    merge: float = 0.0

    @property
    def n(self) -> int:
        return len(self.ready)


@dataclass(frozen=True)
class GreedW:
    """method: portfolio or literal; merge_s: seconds to add two whole gradients (gamma)."""

    method: str = "portfolio"
    merge_s: float = 0.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> GreedW:
        """From `method: portfolio | literal` and `merge_s`."""
        return cls(
            word("greedw", "method", options.get("method", "portfolio"), METHODS),
            number("greedw", "merge_s", options.get("merge_s", 0.0), least=0),
        )

    @property
    def name(self) -> str:
        return "greedw" if self.method == "portfolio" else f"greedw-{self.method}"

    def plan(self, network: NetworkView) -> Plan:
        """One tree for the estimates as they are now."""
        costs = costs_of(network, self.merge_s)
        parents = earliest_merge(costs) if self.method == "literal" else best_of_all(costs)
        root = parents.index(None)
        time = aggregation_time(costs, parents)
        return Plan(self.name, (Tree(root, 1.0, network.model_bits / 1e6 / time if time else 0.0, parents),))


def costs_of(network: NetworkView, merge_s: float = 0.0) -> Costs:
    """The model's costs: a pair's rate is that of the slowest link on its way, its delay their sum."""
    size = network.model_bits / 1e6

    def link(u: int, v: int) -> float:
        if u == v:
            return 0.0
        slowest = max(network.cost(arc) for arc in pairwise(network.hop(u, v)))
        return network.hop_delay(u, v) + size * slowest

    sites = range(network.n)
    ready = network.ready_s or (0.0,) * network.n
    return Costs(tuple(tuple(link(u, v) for v in sites) for u in sites), ready, merge_s)


def aggregation_time(costs: Costs, parents: Parents) -> float:
    """fin(root) of a tree."""
    below: list[list[int]] = [[] for _ in parents]
    for site, parent in enumerate(parents):
        if parent is not None:
            below[parent].append(site)
    order = [parents.index(None)]
    for v in order:
        order.extend(below[v])
    fin = list(costs.ready)
    for v in reversed(order):
        for u in sorted(below[v], key=lambda u: (fin[u], u)):
            fin[v] = max(fin[v], fin[u]) + costs.link[u][v] + costs.merge
    return fin[order[0]]


def best_of_all(costs: Costs) -> Parents:
    """The portfolio: the tree of least aggregation time, the first of equals."""
    best: Parents | None = None
    least = math.inf
    for parents in candidates(costs):
        time = aggregation_time(costs, parents)
        if best is None or time < least * (1 - TIE):
            best, least = parents, time
    assert best is not None, "there is at least one site"
    return best


def candidates(costs: Costs) -> Iterator[Parents]:
    """All trees of the portfolio, in the order in which equals win."""
    builders: tuple[Callable[[Costs, int], Parents], ...] = (prim, shortest_paths, earliest_completion)
    for build in builders:
        for root in range(costs.n):
            yield build(costs, root)
    yield earliest_merge(costs)
    for root in range(costs.n):
        yield tuple(None if v == root else root for v in range(costs.n))


def earliest_merge(costs: Costs) -> Parents:
    """E of the module's text; the survivor is the root."""
    alive = list(range(costs.n))
    ready = list(costs.ready)
    parents: list[int | None] = [None] * costs.n
    while len(alive) > 1:
        offers = [
            (max(ready[u], ready[v]) + costs.link[u][v] + costs.merge, costs.link[u][v], u, v)
            for u in alive
            for v in alive
            if u != v
        ]
        least = min(offers)[0]
        _, sender, receiver = min(offer[1:] for offer in offers if offer[0] <= least * (1 + TIE))
        parents[sender] = receiver
        ready[receiver] = max(ready[sender], ready[receiver]) + costs.link[sender][receiver] + costs.merge
        alive.remove(sender)
    return tuple(parents)


def prim(costs: Costs, root: int) -> Parents:
    """P: from the root, always the cheapest arc into the tree; ties: lowest sender, then receiver."""
    return _grow(costs, root, lambda u, v, reach: costs.link[u][v])


def shortest_paths(costs: Costs, root: int) -> Parents:
    """S: every site on its cheapest way to the root."""
    return _grow(costs, root, lambda u, v, reach: reach + costs.link[u][v])


def _grow(costs: Costs, root: int, price: Callable[[int, int, float], float]) -> Parents:
    parents: list[int | None] = [None] * costs.n
    placed: set[int] = set()
    heap: list[tuple[float, int, int]] = [(0.0, root, root)]
    while heap:
        paid, u, v = heapq.heappop(heap)
        if u in placed:
            continue
        placed.add(u)
        if u != root:
            parents[u] = v
        for w in range(costs.n):
            if w not in placed:
                heapq.heappush(heap, (price(w, u, paid), w, u))
    return tuple(parents)


def earliest_completion(costs: Costs, root: int) -> Parents:
    """X: in reversed time the root's result spreads; a site that has it gives it on, one site at a time."""
    parents: list[int | None] = [None] * costs.n
    free = {root: 0.0}
    while len(free) < costs.n:
        done, u, v = min(
            (free[v] + costs.link[u][v] + costs.merge, u, v)
            for v in free
            for u in range(costs.n)
            if u not in free
        )
        parents[u] = v
        free[u] = free[v] = done
    return tuple(parents)
