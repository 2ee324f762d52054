"""`ring`: ring all-reduce, the reduce-scatter and all-gather of MPI and NCCL, as one pair of chains a site.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
Sites stand in a ring p_0 -> p_1 -> .. -> p_{n-1} -> p_0 and the model is cut into n equal segments. Segment k
starts at p_{k+1}, collects the sums of p_{k+1}, p_{k+2}, .. and is complete at p_k after n-1 steps
(reduce-scatter); from there it goes on round the ring to p_{k-1} in n-1 more (all-gather). As trees with the
root p_k that is a push chain and a pull chain, which are not each other's reverse, since both go forwards:
    parents[p_i] = p_{i+1} for i != k;   pull_parents[p_i] = p_{i-1} for i != k.
Every hop of the ring is in n-1 push chains and n-1 pull chains, so with equal shares 1/n it carries
2 (n-1)/n of the model: 2 (n-1) steps of M/n each. Chunks of a segment follow each other without waiting for a
step's end, so the time for a large model is set by the busiest link alone:
    T = M 2 (n-1)/n  max over arcs a of  w(a) * (hops of the ring whose way over the network uses a).
Neighbours use their direct link, other hops the primary path, where they share links with each other.

Order of the sites:
* `given`    by rank, as MPI does;
* `greedy`   from site 0 always on to the site of the cheapest way (sum of w) not yet in the ring;
* `optimal`  the least T over all (n-1)! rings, then the least sum of the ways, then the first in order of
             indexes; exact, by branch and bound, up to 10 sites.

Score: 1/Q of a chain, Q the sum of the push chain's hops (each level of a chain is one hop).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agents.planning.base import NetworkView, Plan, PlanError, Tree
from agents.planning.options import word
from agents.planning.routes import TIE, at_most

ORDERS = ("given", "greedy", "optimal")
MOST_OPTIMAL = 10


@dataclass(frozen=True)
class Ring:
    """order: given, greedy or optimal."""

    order: str = "given"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> Ring:
        """From `order: given | greedy | optimal`."""
        return cls(word("ring", "order", options.get("order", "given"), ORDERS))

    @property
    def name(self) -> str:
        return "ring" if self.order == "given" else f"ring-{self.order}"

    def plan(self, network: NetworkView) -> Plan:
        """One chain pair for every site, equal shares."""
        return Plan(self.name, chains(network, ring_order(network, self.order)), cut="smooth")


def chains(network: NetworkView, ring: Sequence[int]) -> tuple[Tree, ...]:
    """The chain pair of every site, for sites that each send to the next in `ring`."""
    n = len(ring)
    trees = []
    for k, root in enumerate(ring):
        parents: list[int | None] = [None] * n
        pull: list[int | None] = [None] * n
        for i, site in enumerate(ring):
            if i != k:
                parents[site], pull[site] = ring[(i + 1) % n], ring[i - 1]
        length = math.fsum(network.hop_cost(v, p) for v, p in enumerate(parents) if p is not None)
        trees.append(Tree(root, 1 / n, 1 / length if length else 0.0, tuple(parents), tuple(pull)))
    return tuple(trees)


def ring_order(network: NetworkView, order: str) -> tuple[int, ...]:
    """The sites in ring order, from site 0. PlanError when `optimal` is asked of more than 10 sites."""
    if order == "given":
        return tuple(range(network.n))
    if order == "greedy":
        return _greedy(network)
    if network.n > MOST_OPTIMAL:
        raise PlanError(
            f"the optimal ring of {network.n} sites is out of reach (at most {MOST_OPTIMAL})",
            hint="use order: greedy",
        )
    return _optimal(network)


def ring_time(network: NetworkView, ring: Sequence[int]) -> float:
    """max over arcs of w(a) * (hops that use a), in seconds per megabit that every hop carries."""
    busy: dict[tuple[int, int], float] = {}
    for src, dst in zip(ring, (*ring[1:], ring[0]), strict=True):
        if src != dst:
            for arc in pairwise(network.hop(src, dst)):
                busy[arc] = busy.get(arc, 0.0) + network.cost(arc)
    return max(busy.values(), default=0.0)


def _greedy(network: NetworkView) -> tuple[int, ...]:
    ring = [0]
    left = set(range(1, network.n))
    while left:
        here = ring[-1]
        least = min(network.hop_cost(here, v) for v in left)
        ring.append(min(v for v in left if at_most(network.hop_cost(here, v), least)))
        left.remove(ring[-1])
    return tuple(ring)


def _optimal(network: NetworkView) -> tuple[int, ...]:
    n = network.n
    ways = {(u, v): tuple(pairwise(network.hop(u, v))) for u in range(n) for v in range(n) if u != v}
    length = {hop: math.fsum(network.cost(arc) for arc in arcs) for hop, arcs in ways.items()}
    # The greedy ring's time prunes from the start; its infinite way lets any ring of that time replace it.
    best_time, best_way, best_ring = ring_time(network, _greedy(network)), math.inf, tuple(range(n))
    ring = [0]
    uses: dict[tuple[int, int], int] = {}

    def lay(hop: tuple[int, int], count: int) -> float:
        worst = 0.0
        for arc in ways[hop]:
            uses[arc] = uses.get(arc, 0) + count
            worst = max(worst, uses[arc] * network.cost(arc))
        return worst

    def better(time: float, way: float) -> bool:
        """Whether a ring this good would replace the best one: strictly, so the first of equals stays."""
        return time < best_time * (1 - TIE) or (time <= best_time * (1 + TIE) and way < best_way * (1 - TIE))

    def extend(time: float, way: float) -> None:
        nonlocal best_time, best_way, best_ring
        if len(ring) == n:
            hop = (ring[-1], 0)
            time, way = max(time, lay(hop, 1)), way + length[hop]
            if better(time, way):
                best_time, best_way, best_ring = time, way, tuple(ring)
            lay(hop, -1)
            return
        for v in range(1, n):
            if v in ring:
                continue
            hop = (ring[-1], v)
            further = max(time, lay(hop, 1))
            # Both criteria only grow along a ring, so a part that is no better now never will be.
            if better(further, way + length[hop]):
                ring.append(v)
                extend(further, way + length[hop])
                ring.pop()
            lay(hop, -1)

    if n > 1:
        extend(0.0, 0.0)
    return best_ring
