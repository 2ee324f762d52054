"""Whether a chunk takes another path than its hop's own. Pure.

Published (NetStorm, van.cc: Push): for the auxiliary paths in their order, if more than 2 L chunks wait at
the first hop of the primary and fewer than L at that of the auxiliary, take it. Decided once, where a hop
begins; the detour itself is the network's matter, no site relays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

from agents.options import AuxiliaryOptions
from agents.planning.base import NetworkView, Plan
from agents.planning.timing import arc_loads, timing_of

Detours = frozenset[tuple[int, int, int]]
"""(from, to, path number): paths that a hop may take besides its own."""


def choose_path(
    options: AuxiliaryOptions,
    own: int,
    first_hops: Sequence[int],
    waiting: Callable[[int], int],
    allowed: Collection[int] | None = None,
    draw: Callable[[int], int] | None = None,
) -> int:
    """The number of the path that the next chunk takes.

    Args:
        own: the number of the hop's own path.
        first_hops: of every path to this destination, by number.
        waiting: chunks that wait where a path begins.
        allowed: the other paths that may be taken; None: all.
        draw: gives a number below the one that it gets, for `random`.
    """
    if not options.on or own >= len(first_hops):
        return own
    if options.rule == "random":
        assert draw is not None, "a random path needs something to draw with"
        able = [k for k in range(len(first_hops)) if k == own or allowed is None or k in allowed]
        return able[draw(len(able))]
    primary = first_hops[own]
    if waiting(primary) <= 2 * options.limit:
        return own
    for number, hop in enumerate(first_hops):
        if number == own or hop == primary or (allowed is not None and number not in allowed):
            continue
        if waiting(hop) < options.limit:
            return number
    return own


def spare_detours(
    plan: Plan,
    network: NetworkView,
    paths: Mapping[tuple[int, int], Sequence[tuple[int, ...]]],
    spare_ratio: float,
) -> Detours:
    """The paths whose every link keeps `spare_ratio` of its rate free while the plan runs at its own rate.

    `paths` are those of the network by (from, to), as numbers of `network`'s sites. The plan's trees together
    run at the rate of their most loaded link, so all others have something to spare.
    """
    loads = arc_loads(plan.trees, network)
    total = timing_of(plan.trees, network).rate_bps
    spare = {
        arc
        for arc, rate in network.rates.items()
        if rate > 0 and rate - total * loads.get(arc, 0.0) >= spare_ratio * rate
    }
    return frozenset(
        (src, dst, number)
        for (src, dst), alternatives in paths.items()
        for number, path in enumerate(alternatives)
        if all(hop in spare for hop in pairwise(path))
    )
