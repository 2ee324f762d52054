"""`packing`: trees of the largest total rate that the links allow, of little latency, served by slack. Ours.

Why trees packed together. A chunk on a tree loads each of the tree's links once up and once down, whichever
site is its root. In steady state the trees together therefore carry at most
    max sum x_t   subject to   sum over trees t that use link e of  x_t <= b_e,   x >= 0,
a fractional packing of spanning trees. By Tutte and Nash-Williams its value is the least, over partitions P
of the sites, of (capacity crossing P) / (|P| - 1), and no uncoded all-reduce can exceed that: seen from the
parts, an element needs |P| - 1 transfers to be summed and as many to be spread, against twice that capacity.
So the linear programme reaches the bound itself. NetStorm's fastest-path trees with shares by score reach
two thirds of it on average, since they do not see that trees of different roots share links.

Rate. There are too many trees to list, so columns are generated: at the duals y of the programme over the
trees known, a minimum spanning tree at prices y is the tree wanted most, and sum b_e y_e / (its price)
bounds the rate of any packing, so the gap is known at every moment. A pool of trees under multiplicative
weights of their load starts it near the end.

Latency. Many packings have the same rate; what a finite run loses to it is the time to fill the trees. With
hop(u,v) = chunk bits / b + delay and L(t) = twice the radius of t (up and down again), a second programme
keeps the rate and minimises sum L(t) x_t; its columns are proposed by growing trees that weigh depth against
price, from the most central sites. The root of a tree is its centre.

Links of unequal directions: separate in-trees and out-trees with a common root, one rate per root that both
must meet, minimum-cost arborescences in place of spanning trees; roots beyond the first few join when they
would raise the rate. Per root, deep in-trees are paired with shallow out-trees.

Order. Served first in, first out, these trees lose 30 % of the tight links' time: at its leaves a tree's
whole share waits for the link at once, and chunks of other trees that pass through wait behind it. Served by
slack (`agents.sync.order`) they come within 2 % of the bound on NetStorm's network. Chunks are cut to exact
shares and interleaved (`cut_smoothly`); a run-ahead window keeps what a site has sent of its own a few fills
ahead of what it has got back.

Source: own. Score of a tree: its rate in Mbit/s. The same view always gives the same plan: the work is
limited by rounds of programmes, not by a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.planning.base import NetworkView, Plan, Tree
from agents.planning.options import flag, number, whole_number
from agents.planning.routes import TIE
from agents.planning.spanning_trees import Packing, pack_spanning_trees
from agents.planning.timing import timing_of
from agents.planning.tree_pairs import pack_tree_pairs


@dataclass(frozen=True)
class PackingScheduler:
    """gap            stop when the rate is proven within this of the best
    rounds         most linear programmes for the rate
    latency        whether to choose among the packings one of little latency
    run_ahead      how many fills of the trees contributions may be ahead of results; None = no limit
    roots          with unequal directions: how many roots to begin with
    message_s      seconds of a link that a message is taken to cost: chunks are fitted to it; None = not fitted
    """

    gap: float = 1e-3
    rounds: int = 60
    latency: bool = True
    run_ahead: float | None = 4.0
    roots: int = 9
    message_s: float | None = None

    @property
    def name(self) -> str:
        """packing, or packing-fitted where it chooses the size of chunks."""
        return "packing" if self.message_s is None else "packing-fitted"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> PackingScheduler:
        """From `gap`, `rounds`, `latency: true | false`, `run_ahead` (0 = no limit), `roots`, `message_s` (0 = not
        fitted).
        """
        ahead = number("packing", "run_ahead", options.get("run_ahead", cls.run_ahead), least=0)
        return cls(
            number("packing", "gap", options.get("gap", cls.gap), least=0, most=1),
            whole_number("packing", "rounds", options.get("rounds", cls.rounds), least=1),
            flag("packing", "latency", options.get("latency", cls.latency)),
            ahead or None,
            whole_number("packing", "roots", options.get("roots", cls.roots), least=1),
            number("packing", "message_s", options.get("message_s", 0), least=0, most=10) or None,
        )

    def plan(self, network: NetworkView) -> Plan:
        """Trees of the largest total rate. PlanError naming the sites that cannot be reached."""
        trees = self._trees(network)
        timing = timing_of(trees, network)
        return Plan(self.name, trees, "slack", "smooth", self.run_ahead, timing, message_s=self.message_s)

    def pack(self, network: NetworkView) -> Packing:
        """The packing itself, of two sites and more: rate and proven bound in Mbit/s, trees."""
        assert network.fastest, "raises where a site cannot be reached"
        rates = {arc: 1 / cost for arc, cost in network.costs.items()}
        chunk = network.chunk_bits / 1e6
        hops = {arc: chunk / rate + network.delays.get(arc, 0.0) for arc, rate in rates.items()}
        latency_rounds = 40 if self.latency else 0
        if all(math.isclose(rates.get((v, u), 0), rate, rel_tol=TIE) for (u, v), rate in rates.items()):
            pairs = [arc for arc in rates if arc[0] < arc[1]]
            return pack_spanning_trees(
                network.n,
                {arc: rates[arc] for arc in pairs},
                {(u, v): (hops[u, v] + hops[v, u]) / 2 for u, v in pairs},
                gap=self.gap,
                rounds=self.rounds,
                latency_rounds=latency_rounds,
            )
        return pack_tree_pairs(
            network.n,
            rates,
            hops,
            gap=self.gap,
            rounds=self.rounds,
            latency_rounds=latency_rounds,
            roots=self.roots,
        )

    def _trees(self, network: NetworkView) -> tuple[Tree, ...]:
        if network.n == 1:
            return (Tree(0, 1.0, 0.0, (None,)),)
        packed = self.pack(network).trees
        total = math.fsum(tree.rate for tree in packed)
        return tuple(
            Tree(
                tree.root,
                tree.rate / total,
                tree.rate,
                tree.up,
                None if tree.up == tree.down else tree.down,
            )
            for tree in packed
        )
