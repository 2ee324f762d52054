"""`netstorm`: the fastest-path aggregation trees (FAPT) of NetStorm, several roots, shares by score.

Source: Li et al., "Accelerating Geo-distributed Machine Learning with Network-Aware Adaptive Tree and
Auxiliary Route", IEEE/ACM ToN 2024 (arXiv 2404.11352), as its public code computes it
(github.com/fengwenjiao/netstorm: van.cc add_route, PolicyDecision, compute_performance; kvstore_dist.h
EncodeDefaultKey).

Tree of root r. Sending one megabit over (u, v) costs w(u,v) = 1/rate. A site waits for its slowest child, so
the finish time of a store-and-forward aggregation on tree T is the largest path cost in T to r. No path in T
is cheaper than the fastest one in the whole graph, hence the union of the fastest paths to r minimises every
site's path cost at once, and so the maximum. The code enumerates all simple paths in ascending order and
keeps the first strict minimum; a Dijkstra on the reversed arcs that prefers the lowest next hop gives the
same tree in polynomial time.

Score of root r. Not the above but a level-synchronous cost, over the best paths root -> leaf (not leaf ->
root, which matters where the two directions of a link differ, or with ties):
    Q(r) = sum over k of  max of w over the k-th hops of the fastest paths r -> v, all v
    score(r) = 1/Q(r)
The fastest path r -> v follows the parents of v's own tree, so no further search is needed.

Roots: the R of highest score (default all); the code zeroes the smallest one after another, the lowest index
first among equals. Shares are proportional to the scores.

Results: the public code sends them down the push tree reversed, whatever the rates that way (`pull:
reversed`). By default (`pull: own`) they take the fastest paths from the root, which is the same where both
directions of every link are alike.

Random paths (`paths: random`, the published switch ENABLE_RANDOM): instead of the fastest paths a random
spanning tree over the links for every root, drawn by `seed` and by how many plans the segment had before;
scores are 1/Q of that tree. The code draws a path for every pair instead, which need not make trees.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.planning import routes
from agents.planning.base import NetworkView, Parents, Plan, PlanError, Tree
from agents.planning.options import whole_number, word
from agents.planning.timing import level_score
from topologies.errors import UsageError


@dataclass(frozen=True)
class NetStorm:
    """roots: how many roots to keep (R); None = every site.
    pull: results travel down the fastest paths from the root (`own`) or down the push tree (`reversed`).
    """

    roots: int | None = None
    pull: str = "own"
    paths: str = "fastest"
    seed: int = 0

    @property
    def name(self) -> str:
        """netstorm, or netstorm-random."""
        return "netstorm" if self.paths == "fastest" else "netstorm-random"

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> NetStorm:
        """From `roots: R`, from 1 to the number of sites, or `all`; `pull: own | reversed`; `paths: fastest |
        random` and the `seed` of the latter.
        """
        pull = options.get("pull", "own")
        if pull not in ("own", "reversed"):
            raise UsageError(
                f"scheduler netstorm cannot pull by {pull!r} trees", hint="use pull: own or pull: reversed"
            )
        paths = word("netstorm", "paths", options.get("paths", "fastest"), ("fastest", "random"))
        seed = whole_number("netstorm", "seed", options.get("seed", 0), least=0)
        roots = options.get("roots", "all")
        if roots == "all":
            return cls(None, pull, paths, seed)
        if not isinstance(roots, int) or isinstance(roots, bool) or not 1 <= roots <= len(site_names):
            raise UsageError(
                f"scheduler netstorm cannot keep {roots!r} roots", hint=f"use 1 to {len(site_names)}, or all"
            )
        return cls(roots, pull, paths, seed)

    def plan(self, network: NetworkView) -> Plan:
        """FAPT of every kept root, in ascending order of the roots."""
        if self.paths == "random":
            return self._random_plan(network)
        scores = level_scores(network)
        kept = keep_roots(scores, network.n if self.roots is None else self.roots)
        total = math.fsum(scores[r] for r in kept)
        costs = network.costs
        symmetric = all(costs.get((v, u)) == cost for (u, v), cost in costs.items())
        backwards = network.arcs.reversed()
        trees = []
        for r in kept:
            push = network.fastest[r].parents
            pull = push
            if self.pull == "own" and not symmetric:
                pull = backwards.fastest_in_tree(r).parents
            share = scores[r] / total if total else 1.0
            trees.append(Tree(r, share, scores[r], push, None if pull == push else pull))
        return Plan(self.name, tuple(trees))

    def _random_plan(self, network: NetworkView) -> Plan:
        draw = random.Random(f"netstorm {self.seed} {network.draw}")
        push = [random_tree(draw, network, r) for r in range(network.n)]
        scores = [level_score(network, r, parents) for r, parents in enumerate(push)]
        kept = keep_roots(scores, network.n if self.roots is None else self.roots)
        total = math.fsum(scores[r] for r in kept)
        trees = []
        for r in kept:
            pull = push[r] if self.pull == "reversed" else random_tree(draw, network, r, down=True)
            share = scores[r] / total if total else 1.0
            trees.append(Tree(r, share, scores[r], push[r], None if pull == push[r] else pull))
        return Plan(self.name, tuple(trees))


def random_tree(draw: random.Random, network: NetworkView, root: int, *, down: bool = False) -> Parents:
    """A random spanning tree over the links: towards the root, or away from it (`down`). PlanError when the
    links do not connect all sites that way.

    Grown by a random link from the tree to a site outside at a time (own).
    """
    parents: list[int | None] = [None] * network.n
    reached, edge = {root}, []
    arcs = network.arcs
    new = root
    while len(reached) < network.n:
        edge += [(site, new) for site, _ in (arcs.outgoing if down else arcs.incoming)[new]]
        edge = [(site, parent) for site, parent in edge if site not in reached]
        if not edge:
            lost = ", ".join(network.name(v) for v in range(network.n) if v not in reached)
            raise PlanError(f"no tree of root {network.name(root)} reaches {lost}", hint="is a link down?")
        new, parent = draw.choice(edge)
        parents[new] = parent
        reached.add(new)
    return tuple(parents)


def level_scores(network: NetworkView) -> list[float]:
    """score(r) = 1/Q(r) in Mbit/s of every site (0 for a single site, which has no link to score).

    All paths are followed at once, one hop after the other: `at` is where each of them has come to.
    """
    n = network.n
    hops = np.empty((n, n), np.int64)  # hops[goal, v]: where v goes on the fastest path to goal
    costs = np.zeros((n, n))  # and what that hop costs
    for goal, tree in enumerate(network.fastest):
        for v, parent in enumerate(tree.parents):
            if parent is None:
                hops[goal, v] = v
            else:
                hops[goal, v] = parent
                costs[goal, v] = network.costs[v, parent]
    leaf, root = np.nonzero(hops != np.arange(n))
    at = root
    levels: list[list[float]] = []
    while root.size:
        worst = np.zeros(n)
        np.maximum.at(worst, root, costs[leaf, at])
        levels.append(worst.tolist())
        at = hops[leaf, at]
        under_way = at != leaf
        leaf, root, at = leaf[under_way], root[under_way], at[under_way]
    level_costs = [math.fsum(level[r] for level in levels) for r in range(n)]
    return [1 / cost if cost else 0.0 for cost in level_costs]


def keep_roots(scores: Sequence[float], count: int) -> list[int]:
    """The `count` sites of highest score, ascending; among equals the lowest indexes are dropped first."""
    kept = list(range(len(scores)))
    while len(kept) > count:
        least = min(scores[r] for r in kept)
        kept.remove(next(r for r in kept if routes.at_most(scores[r], least)))
    return kept
