"""How fast a plan runs, from its trees and the network's rates; and plans under another link order.

In steady state a tree of share s puts s of every bit on each link of each of its hops, once up and once
down. The links are full duplex and independent, so the trees together carry
    rate = min over arcs a of  b(a) / load(a),   load(a) = sum of the shares of the hops that cross a.
The order of chunks on the links does not change this limit, only how near a finite run comes to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from agents.planning.base import LinkOrder, NetworkView, Parents, Plan, Scheduler, Timing, Tree


def hops(tree: Tree) -> Iterator[tuple[int, int]]:
    """(from, to) of every hop of a tree: up, then down."""
    for site, parent in enumerate(tree.parents):
        if parent is not None:
            yield site, parent
    for site, parent in enumerate(tree.down_parents):
        if parent is not None:
            yield parent, site


def arc_loads(trees: Iterable[Tree], network: NetworkView) -> dict[tuple[int, int], float]:
    """load(a) of every arc in use, in bits per bit of the model."""
    loads: dict[tuple[int, int], float] = {}
    for tree in trees:
        for src, dst in hops(tree):
            for arc in pairwise(network.hop(src, dst)):
                loads[arc] = loads.get(arc, 0.0) + tree.share
    return loads


def timing_of(trees: Sequence[Tree], network: NetworkView) -> Timing:
    """Rate of a set of trees and the times of their hops. A single site has rate 0 and no hop.

    PlanError when a hop crosses a link without rate.
    """
    loads = arc_loads(trees, network)
    rate = min((1e6 / (network.cost(arc) * load) for arc, load in sorted(loads.items())), default=0.0)
    used = sorted({hop for tree in trees for hop in hops(tree)})
    return Timing(rate, tuple((u, v, network.hop_cost(u, v) / 1e6, network.hop_delay(u, v)) for u, v in used))


def level_score(network: NetworkView, root: int, parents: Parents) -> float:
    """1/Q in Mbit/s of one tree: Q adds up the dearest hop of each level, in the direction root to leaf.

    NetStorm's level-synchronous score, for trees whose hops may be relayed. 0 for a single site.
    """
    dearest: dict[int, float] = {}
    for site, parent in enumerate(parents):
        if parent is None:
            continue
        level, above = 0, parent
        while above != root:
            step = parents[above]
            assert step is not None, "checked by Tree"
            level, above = level + 1, step
        dearest[level] = max(dearest.get(level, 0.0), network.hop_cost(parent, site))
    total = math.fsum(dearest.values())
    return 1 / total if total else 0.0


def with_link_order(plan: Plan, network: NetworkView, order: LinkOrder) -> Plan:
    """The same trees and chunks, served on the links in another order."""
    timing = plan.timing
    if order == "slack" and timing is None:
        timing = timing_of(plan.trees, network)
    return replace(plan, link_order=order, timing=timing)


@dataclass(frozen=True)
class Ordered:
    """A scheduler's plans under another link order; results are shown as NAME+ORDER."""

    scheduler: Scheduler
    link_order: LinkOrder

    @property
    def name(self) -> str:
        return f"{self.scheduler.name}+{self.link_order}"

    def plan(self, network: NetworkView) -> Plan:
        """The wrapped scheduler's plan, served in this order."""
        plan = with_link_order(self.scheduler.plan(network), network, self.link_order)
        return replace(plan, scheduler=self.name)
