"""How fast any all-reduce could be on a topology: the limit that every measured time is set against.

Symmetric full-duplex links (both directions of every link equal): the partition bound, exact, which holds
for every scheme that sends sums of elements without coding and which spanning-tree packing attains.
Otherwise two numbers: `rate_bps`, the best rate of any scheme in which each chunk goes up one tree to a root
and down another from it (all schedulers here are of that kind), and `proven_rate_bps >= rate_bps`, which no
uncoded scheme at all can exceed. Where the two coincide, which is the rule, the limit is a proven one for
everything. Sources: own derivation in docs/simulation.md; Tutte and Nash-Williams for the partitions, Edmonds for
the arborescences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from testbed.simulation.partition import crossing, smallest_directed_cut, strength
from testbed.simulation.tree_packing import pack
from topologies.errors import UsageError
from topologies.model import Topology

SCHEMA = 1
Rates = Mapping[tuple[int, int], float]
# LP values within this of a proven cut are that cut: the solver's own tolerance is coarser than the fraction.
_SAME = 1e-6


@dataclass(frozen=True)
class Bound:
    """The limit of one topology.

    rate_bps          elements' bits that can be summed and spread per second, at most kind
    "partition" (symmetric links, exact) or "trees" (linear programme over arborescences) proven_rate_bps
    no uncoded scheme exceeds this; equals rate_bps unless `kind` is "trees" and `tight` is False
    attained_rate_bps what the tree packing found reaches: below rate_bps by the programme's remaining gap
    only cut               the parts of the sites behind `proven_rate_bps` cut_kind          "partition":
    (sum over links crossing the parts) / (parts - 1), directions averaged;
                      "directed": the capacity from the first part to the second
    bytes, seconds    what every site holds, and the least time to sum and spread it (None without a size)
    """

    sites: tuple[str, ...]
    rate_bps: float
    kind: Literal["partition", "trees"]
    proven_rate_bps: float
    attained_rate_bps: float
    cut: tuple[tuple[int, ...], ...]
    cut_kind: Literal["partition", "directed"]
    bytes: int | None = None

    @property
    def tight(self) -> bool:
        """Whether `rate_bps` is proven for every uncoded scheme, not only for trees."""
        return self.rate_bps >= self.proven_rate_bps * (1 - _SAME)

    @property
    def seconds(self) -> float | None:
        return None if self.bytes is None else 8 * self.bytes / self.rate_bps

    @property
    def named_cut(self) -> list[list[str]]:
        """The parts of `cut` by site name."""
        return [[self.sites[k] for k in part] for part in self.cut]

    def to_dict(self) -> dict[str, Any]:
        """What `testbed bound --format json` prints."""
        return {
            "schema": SCHEMA,
            "rate_bps": self.rate_bps,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "kind": self.kind,
            "proven_rate_bps": self.proven_rate_bps,
            "attained_rate_bps": self.attained_rate_bps,
            "tight": self.tight,
            "cut": self.named_cut,
            "cut_kind": self.cut_kind,
        }


def bound(network: Topology | Rates, nbytes: int | None = None) -> Bound:
    """The limit of a topology, or of directed rates {(u, v): bit/s} on sites 0..n-1.

    Raises UsageError when there are fewer than two sites, a rate is not positive, or some site cannot reach
    another.
    """
    if isinstance(network, Topology):
        names = network.site_names
        rates: dict[tuple[int, int], float] = dict(network.rates())
    else:
        rates = {arc: float(rate) for arc, rate in network.items() if rate != 0}
        names = tuple(str(k) for k in range(1 + max((max(arc) for arc in network), default=-1)))
    n = len(names)
    if n < 2:
        raise UsageError("a bound needs at least two sites", hint="one site has nothing to synchronise")
    if nbytes is not None and nbytes <= 0:
        raise UsageError(f"cannot bound the time for {nbytes} bytes", hint="give a size above zero")
    if min(rates.values(), default=0) < 0:
        raise UsageError("a rate below zero has no bound")
    _check_connected(n, rates, names)
    exact, unit = _integers(rates)
    both = dict.fromkeys(sorted({(min(arc), max(arc)) for arc in exact}), 0)
    for (u, v), capacity in exact.items():
        both[min(u, v), max(u, v)] += capacity
    twice, parts = strength(n, both)
    partition = twice / 2
    if all(exact.get((v, u)) == capacity for (u, v), capacity in exact.items()):
        rate = float(partition * unit)
        return Bound(names, rate, "partition", rate, rate, parts, "partition", nbytes)
    cut, sending, receiving = smallest_directed_cut(n, exact)
    proven, cut_kind = partition, "partition"
    if cut <= partition:
        proven, parts, cut_kind = Fraction(cut), (sending, receiving), "directed"
    packing = pack(n, {arc: float(capacity) for arc, capacity in exact.items()})
    rate = min(packing.upper, float(proven))
    if rate >= float(proven) * (1 - _SAME):
        rate = float(proven)
    attained = min(packing.lower, rate)
    scale = float(unit)
    return Bound(
        names,
        rate * scale,
        "trees",
        float(proven * unit),
        attained * scale,
        parts,
        "partition" if cut_kind == "partition" else "directed",
        nbytes,
    )


def partition_rate(parts: tuple[tuple[int, ...], ...], rates: Rates) -> float:
    """The rate that one partition allows: directed capacity crossing it / (2 (parts - 1))."""
    exact, unit = _integers(rates)
    return float(Fraction(crossing(parts, exact), 2 * (len(parts) - 1)) * unit)


def _integers(rates: Rates) -> tuple[dict[tuple[int, int], int], Fraction]:
    """The rates as integer multiples of one unit, exactly."""
    fractions = {arc: Fraction(rate) for arc, rate in sorted(rates.items())}
    denominator = math.lcm(*(f.denominator for f in fractions.values()))
    return {arc: int(f * denominator) for arc, f in fractions.items()}, Fraction(1, denominator)


def _check_connected(n: int, rates: Rates, names: tuple[str, ...]) -> None:
    for forwards in (True, False):
        reached, todo = {0}, [0]
        while todo:
            here = todo.pop()
            for u, v in rates:
                a, b = (u, v) if forwards else (v, u)
                if a == here and b not in reached:
                    reached.add(b)
                    todo.append(b)
        if len(reached) < n:
            lost = ", ".join(names[k] for k in range(n) if k not in reached)
            way = f"{names[0]} cannot reach" if forwards else f"{names[0]} cannot be reached from"
            raise UsageError(
                f"no all-reduce is possible: {way} {lost}", hint="check the links of these sites"
            )
