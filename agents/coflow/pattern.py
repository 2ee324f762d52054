"""What one synchronisation of a job puts on the network: its flows and the links that they cross. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from agents.coflow.base import CoflowError
from agents.planning.base import Plan

Hop = tuple[int, int]


def flows_of(plan: Plan, model_bytes: float, members: Sequence[int]) -> dict[Hop, float]:
    """Bytes between sites of one all-reduce of `model_bytes`, by (from, to) in the topology's numbers.

    Args:
        plan: trees over the job's sites, numbered by their place in `members`.
        members: the topology's number of each of the job's sites.

    Partial sums go up every tree and results down it; each tree carries its share. Raises CoflowError for a
    plan that decides per transfer: what it will send where is not known before.
    """
    if plan.transfers is not None:
        raise CoflowError(
            f"{plan.scheduler} decides per transfer, so a job's loads are not known before",
            hint="synchronise by a scheduler that plans ahead, such as ring or star",
        )
    flows: dict[Hop, float] = {}
    for tree in plan.trees:
        hops = [(v, parent) for v, parent in enumerate(tree.parents) if parent is not None]
        hops += [(parent, v) for v, parent in enumerate(tree.down_parents) if parent is not None]
        for src, dst in hops:
            hop = members[src], members[dst]
            flows[hop] = flows.get(hop, 0.0) + tree.share * model_bytes
    return flows


def link_loads(
    flows: Mapping[Hop, float],
    routes: Mapping[Hop, Sequence[int]],
    links: Mapping[Hop, int],
    rates_bps: Mapping[Hop, float],
) -> dict[int, float]:
    """Seconds on each directed link, by its number, that these flows need.

    Args:
        routes: the sites that a flow passes, ends included.
        links: the number of every directed link.
        rates_bps: its rate.
    """
    loads: dict[int, float] = {}
    for pair, amount in flows.items():
        for hop in pairwise(routes[pair]):
            rate = rates_bps[hop]
            if not rate > 0:
                raise CoflowError(f"the link {hop[0]} -> {hop[1]} has no rate", hint="is it down?")
            loads[links[hop]] = loads.get(links[hop], 0.0) + amount * 8 / rate
    return loads
