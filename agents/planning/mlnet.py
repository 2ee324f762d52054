"""`mlnet`: one complete k-ary tree, fixed for the whole job, that does not look at the network.

Source: Mai et al., "Optimizing Network Performance in Distributed Machine Learning", HotCloud 2015, names the
idea (workers aggregate on the way up and multicast on the way down a tree); NetStorm's paper compares with it
as the regular, network-oblivious tree. Its arity and order of sites are not published, so both are options
here and belong beside every result.

Sites stand in an order p_0, p_1, ..: by rank, or a seeded shuffle of the ranks (placement is luck on links of
unequal rate, so results should be averaged over seeds). Position 0 is the root and
    parent(i) = (i - 1) // k,   children(i) = k i + 1 .. min(k i + k, n - 1).
Hops are logical: the network relays those between sites that are no neighbours. With `roots: all`, tree r
uses the order rotated by r and every tree carries an equal share, so that all sites serve alike.

Score: NetStorm's level-synchronous 1/Q of the tree, over the relayed hops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents.planning.base import NetworkView, Plan, Tree
from agents.planning.options import whole_number, word
from agents.planning.timing import level_score


@dataclass(frozen=True)
class MlNet:
    """k: children a site; seed: of the order of sites (None = by rank); every_root: one tree a site."""

    k: int = 2
    seed: int | None = None
    every_root: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> MlNet:
        """From `k` (1 and more, default 2), `seed` (default none: order by rank), `roots: one | all`."""
        roots = word("mlnet", "roots", options.get("roots", "one"), ("one", "all"))
        seed = options.get("seed")
        return cls(
            whole_number("mlnet", "k", options.get("k", 2), least=1),
            None if seed is None else whole_number("mlnet", "seed", seed, least=0),
            roots == "all",
        )

    @property
    def name(self) -> str:
        """mlnet, and what differs from k = 2, order by rank, one root."""
        arity = "" if self.k == 2 else f"-k{self.k}"
        order = "" if self.seed is None else f"-seed{self.seed}"
        return f"mlnet{arity}{order}{'-all' if self.every_root else ''}"

    def plan(self, network: NetworkView) -> Plan:
        """One tree, or one for every rotation of the order."""
        order = list(range(network.n))
        if self.seed is not None:
            random.Random(self.seed).shuffle(order)
        count = network.n if self.every_root else 1
        trees = []
        for turn in range(count):
            turned = order[turn:] + order[:turn]
            parents = complete_tree(turned, self.k)
            trees.append(Tree(turned[0], 1 / count, level_score(network, turned[0], parents), parents))
        return Plan(self.name, tuple(trees))


def complete_tree(order: Sequence[int], k: int) -> tuple[int | None, ...]:
    """parents[site] of the complete k-ary tree over sites in this order."""
    parents: list[int | None] = [None] * len(order)
    for i, site in enumerate(order[1:], start=1):
        parents[site] = order[(i - 1) // k]
    return tuple(parents)
