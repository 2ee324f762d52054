"""What a scheduler is given and what it gives back.

Rates go in as bits per second; costs and scores are in seconds per megabit and Mbit/s, as in the published
systems: sending one megabit over the arc (u, v) costs w(u,v) = 1e6 / rate(u,v) seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from agents.planning import routes
from agents.planning.transfers import Transfers
from topologies.errors import StormbedError

if TYPE_CHECKING:
    from topologies.model import Topology

SCHEMA = 1
BIG_ARRAY = 1_000_000
TIE = routes.TIE
Parents = tuple[int | None, ...]
LinkOrder = Literal["fifo", "index", "slack"]
Cut = Literal["quota", "smooth", "keys"]
LINK_ORDERS: tuple[LinkOrder, ...] = ("fifo", "index", "slack")
CUTS: tuple[Cut, ...] = ("quota", "smooth", "keys")


class PlanError(StormbedError):
    """No plan can be made, or a plan is not one (not a tree, shares that do not sum to 1)."""


@dataclass(frozen=True)
class Tree:
    """A tree on all sites: partial sums go up to `root`, results go down from it.

    root          index of the root site
    share         part of the elements that this tree carries, 0 < share <= 1
    score         1/Q in Mbit/s (how a scheduler ranks its trees; 0 where a scheduler has none)
    parents       parents[v] = where v sends its partial sum; None at the root only
    pull_parents  pull_parents[v] = where v gets results from; None (the whole field) = the push tree reversed

    Raises PlanError when either is not a tree that spans all sites.
    """

    root: int
    share: float
    score: float
    parents: Parents
    pull_parents: Parents | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 + TIE:
            raise PlanError(f"the tree rooted at site {self.root} has share {self.share}, not in (0, 1]")
        _check_tree(self.root, self.parents, "push")
        if self.pull_parents is not None:
            if len(self.pull_parents) != len(self.parents):
                raise PlanError(f"push and pull trees of root {self.root} differ in their number of sites")
            _check_tree(self.root, self.pull_parents, "pull")

    @property
    def down_parents(self) -> Parents:
        """Where each site gets results from, whether or not that is the push tree reversed."""
        return self.parents if self.pull_parents is None else self.pull_parents

    def to_dict(self) -> dict[str, Any]:
        """Plain values with site indexes; the inverse of `from_dict`."""
        return {
            "root": self.root,
            "share": self.share,
            "score": self.score,
            "parents": list(self.parents),
            "pull_parents": None if self.pull_parents is None else list(self.pull_parents),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Tree:
        pull = plain["pull_parents"]
        return cls(
            plain["root"],
            plain["share"],
            plain["score"],
            tuple(plain["parents"]),
            None if pull is None else tuple(pull),
        )


@dataclass(frozen=True)
class Timing:
    """How fast a plan is expected to run: orders by slack and the run-ahead window are computed from it.

    rate_bps  bits of the model that the trees together carry through per second
    hops      (from, to, seconds per bit, seconds of delay) for every hop of every tree, sorted
    """

    rate_bps: float
    hops: tuple[tuple[int, int, float, float], ...]

    def hop_seconds(self, bits: float) -> dict[tuple[int, int], float]:
        """Seconds that a chunk of `bits` takes on every hop."""
        return {(u, v): bits * per_bit + delay for u, v, per_bit, delay in self.hops}


@dataclass(frozen=True)
class Plan:
    """What a scheduler that plans ahead decides: trees, and how much each of them carries.

    scheduler   the name under which results are shown, such as star-best
    trees       at least one; shares sum to 1; one site may be the root of several
    link_order  which waiting chunk a sender takes next: "fifo" as in the published systems; "index" = the
                lowest (collective, chunk) first; "slack" = within a collective the one that must start first
                to be in time (`agents.sync.order`)
    cut         how a model becomes chunks of the trees: "quota" as in NetStorm, "smooth" with exact shares, or
                "keys" as in MXNet, which knows no shares (`agents.chunks`)
    big_array   elements from which "keys" splits a tensor over all trees
    message_s   seconds of a link that a message costs besides its bits: chunks are then no larger than what fits
                this and the plan's timing (`agents.sync.order.fitted_chunk_bits`); None = as large as allowed
    run_ahead   how many times the trees' own fill a site's contributions may be ahead of the results it has
                (`Policy.window`); None = no limit
    timing      needed by "slack", by run_ahead and by message_s, else None
    transfers   set by schedulers that decide per transfer: all-reduces of floating type follow their
                decisions, and the trees carry the rest
    """

    scheduler: str
    trees: tuple[Tree, ...]
    link_order: LinkOrder = "fifo"
    cut: Cut = "quota"
    run_ahead: float | None = None
    timing: Timing | None = None
    transfers: Transfers | None = None
    big_array: int = BIG_ARRAY
    message_s: float | None = None

    def __post_init__(self) -> None:
        if not self.trees:
            raise PlanError(f"the plan of {self.scheduler} has no tree")
        total = math.fsum(tree.share for tree in self.trees)
        if abs(total - 1) > TIE:
            raise PlanError(f"the shares of the plan of {self.scheduler} sum to {total}, not 1")
        if len({len(tree.parents) for tree in self.trees}) != 1:
            raise PlanError(f"the trees of the plan of {self.scheduler} differ in their number of sites")
        if self.link_order not in LINK_ORDERS:
            raise PlanError(f"unknown link order {self.link_order!r}", hint=", ".join(LINK_ORDERS))
        if self.cut not in CUTS:
            raise PlanError(f"unknown cut {self.cut!r}", hint=", ".join(CUTS))
        timed = self.link_order == "slack" or self.run_ahead is not None or self.message_s is not None
        if self.timing is None and timed:
            raise PlanError(
                f"the plan of {self.scheduler} orders by slack, limits the run-ahead or fits chunks without timing",
                hint="agents.planning.timing.timing_of computes it from trees and network",
            )

    @property
    def n_sites(self) -> int:
        return len(self.trees[0].parents)

    @cached_property
    def main_tree(self) -> int:
        """The tree of everything that is not spread: the one of highest share, among equals the first."""
        best = max(tree.share for tree in self.trees)
        return next(i for i, tree in enumerate(self.trees) if tree.share >= best * (1 - TIE))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        return tuple(tree.share for tree in self.trees)

    def to_dict(self, site_names: Sequence[str]) -> dict[str, Any]:
        """The JSON shape that `testbed plan` prints and reports read."""

        def named(parents: Parents) -> dict[str, str | None]:
            return {site_names[v]: None if p is None else site_names[p] for v, p in enumerate(parents)}

        if self.transfers is not None:
            return {"schema": SCHEMA, "scheduler": self.scheduler, "mode": "per-transfer"}
        roots = []
        for tree in self.trees:
            entry: dict[str, Any] = {
                "site": site_names[tree.root],
                "score": tree.score,
                "share": tree.share,
                "parents": named(tree.parents),
            }
            if tree.pull_parents is not None:
                entry["pull_parents"] = named(tree.pull_parents)
            roots.append(entry)
        plain: dict[str, Any] = {"schema": SCHEMA, "scheduler": self.scheduler, "roots": roots}
        if self.link_order != "fifo":
            plain["link_order"] = self.link_order
        if self.timing is not None:
            plain["rate_bps"] = self.timing.rate_bps
        return plain


@dataclass(frozen=True)
class NetworkView:
    """What a scheduler may know of the network.

    n        number of sites
    rates    bits per second of every directed link between neighbours
    names    site names for messages (default: the index)
    primary  the underlay's path 0 for ordered pairs, sites inclusive; where absent it is the fastest path by
             `rates`. Given when the network's installed paths come from other rates than the ones planned
             with.
    delays   seconds one way of directed links (absent = 0)
    ready_s  predicted seconds until each site's own contribution is there (empty = all at once)

    `draw` tells schedulers that draw at random one plan of a segment from the next.

    Sizes matter only beside delays and ready times: `model_bits` are those of one synchronisation (default:
    AlexNet in float32), `chunk_bits` those of one chunk (default: 100,000 elements of float32).
    """

    n: int
    rates: Mapping[tuple[int, int], float]
    names: tuple[str, ...] = ()
    primary: Mapping[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    delays: Mapping[tuple[int, int], float] = field(default_factory=dict)
    ready_s: tuple[float, ...] = ()
    model_bits: float = 57_029_322 * 32.0
    chunk_bits: float = 3_200_000.0
    draw: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise PlanError(f"a network of {self.n} sites cannot be planned for")
        if self.names and len(self.names) != self.n:
            raise PlanError(f"{len(self.names)} site names for {self.n} sites")
        if self.ready_s and len(self.ready_s) != self.n:
            raise PlanError(f"{len(self.ready_s)} ready times for {self.n} sites")
        if not (self.model_bits > 0 and self.chunk_bits > 0):
            raise PlanError("the sizes of a model and of a chunk must be above zero")
        for (u, v), rate in self.rates.items():
            if not (0 <= u < self.n and 0 <= v < self.n) or u == v:
                raise PlanError(f"the link {u} -> {v} is not between two of the {self.n} sites")
            if not (rate >= 0 and math.isfinite(rate)):
                raise PlanError(f"the link {self.name(u)} -> {self.name(v)} has rate {rate} bit/s")

    @classmethod
    def from_topology(
        cls,
        topology: Topology,
        rates: Mapping[tuple[int, int], float] | None = None,
        paths: Mapping[tuple[int, int], Sequence[tuple[int, ...]]] | None = None,
    ) -> NetworkView:
        """The view of a topology at its declared rates, or at `rates` over the paths of the declared ones.

        `paths` are the topology's path sets, for who has them already.
        """
        from topologies.paths import path_sets

        sets = path_sets(topology) if paths is None else paths
        primary = {pair: found[0] for pair, found in sets.items()}
        return cls(
            len(topology.site_names),
            dict(topology.rates() if rates is None else rates),
            tuple(topology.site_names),
            primary,
            {(link.src, link.dst): link.delay.seconds for link in topology.directed if link.delay.ns},
        )

    def name(self, site: int) -> str:
        return self.names[site] if self.names else str(site)

    @cached_property
    def costs(self) -> dict[tuple[int, int], float]:
        """w(u,v) = seconds per megabit of every usable arc (an arc of rate 0 is no arc)."""
        return {arc: 1e6 / rate for arc, rate in sorted(self.rates.items()) if rate > 0}

    @cached_property
    def arcs(self) -> routes.Arcs:
        """The usable arcs with their costs, to search in."""
        return routes.Arcs(self.n, self.costs)

    @cached_property
    def fastest(self) -> tuple[routes.InTree, ...]:
        """fastest[r]: the fastest paths of all sites to r. PlanError naming those that cannot reach it."""
        trees = []
        for root in range(self.n):
            tree = self.arcs.fastest_in_tree(root)
            lost = [v for v in range(self.n) if not math.isfinite(tree.distance[v])]
            if lost:
                raise PlanError(
                    f"no path to {self.name(root)} from {', '.join(self.name(v) for v in lost)}",
                    hint="check the links of these sites in the topology, and whether one of them is down",
                )
            trees.append(tree)
        return tuple(trees)

    def relay(self, src: int, dst: int) -> tuple[int, ...]:
        """The sites, ends included, over which the network carries traffic from src to dst (path 0)."""
        known = self.primary.get((src, dst))
        if known is not None:
            return known
        return routes.follow(self.fastest[dst].parents, src)

    def hop(self, src: int, dst: int) -> tuple[int, ...]:
        """The sites over which one hop of a tree goes: the direct link between neighbours, else the relay."""
        return (src, dst) if (src, dst) in self.costs else self.relay(src, dst)

    def hop_cost(self, src: int, dst: int) -> float:
        """Seconds per megabit of such a hop, one link after the other."""
        return math.fsum(self.cost(arc) for arc in pairwise(self.hop(src, dst)))

    def hop_delay(self, src: int, dst: int) -> float:
        """Seconds of delay of such a hop."""
        return math.fsum(self.delays.get(arc, 0.0) for arc in pairwise(self.hop(src, dst)))

    def relay_cost(self, src: int, dst: int) -> float:
        """Seconds per megabit of that path, hop after hop. PlanError when one of its links is down."""
        return math.fsum(self.cost(arc) for arc in pairwise(self.relay(src, dst)))

    def cost(self, arc: tuple[int, int]) -> float:
        """w(u,v) of one arc. PlanError when it has no rate."""
        try:
            return self.costs[arc]
        except KeyError:
            ends = " -> ".join(self.name(site) for site in arc)
            raise PlanError(
                f"a path of the network uses the link {ends}, which has no rate", hint="is this link down?"
            ) from None


@runtime_checkable
class Scheduler(Protocol):
    """A scheduler that plans ahead: the same view always gives the same plan."""

    @property
    def name(self) -> str:
        """The name under which results are shown."""
        ...

    def plan(self, network: NetworkView) -> Plan:
        """Trees and shares for the network as seen. PlanError when some site cannot be reached."""
        ...


def _check_tree(root: int, parents: Parents, which: str) -> None:
    n = len(parents)
    if not 0 <= root < n or parents[root] is not None:
        raise PlanError(f"the {which} tree of root {root} gives its root a parent or has no such site")
    reaches_root = [False] * n
    reaches_root[root] = True
    for start in range(n):
        trail: list[int] = []
        v = start
        while not reaches_root[v]:
            parent = parents[v]
            if parent is None or not 0 <= parent < n or len(trail) > n:
                raise PlanError(
                    f"site {start} does not reach root {root} in the {which} tree {list(parents)}"
                )
            trail.append(v)
            v = parent
        for u in trail:
            reaches_root[u] = True
