"""What the scheduler sees of the network when a job uses all sites or only some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from agents.declared_network import DeclaredNetwork
from agents.link_state import NetworkNow
from agents.planning.base import NetworkView


def network_view(
    config: DeclaredNetwork,
    rates: Mapping[tuple[int, int], float],
    members: tuple[int, ...],
    now: NetworkNow | None = None,
) -> NetworkView:
    """The network among `members`, numbered by their place there (own).

    A job of all sites sees the topology. A job of some sees the links among these; where those do not connect
    them, it sees a full mesh whose rates are the least along the primary paths. What is down `now` has no rate,
    and the primaries lead around it.
    """
    topology = config.topology
    if now is not None and now.down:
        return _view_without(now, now.rates(rates), members)
    if len(members) == len(topology.site_names):
        return NetworkView.from_topology(topology, rates, config.paths)
    place = {site: k for k, site in enumerate(members)}
    names = tuple(topology.site_names[site] for site in members)
    inside = {(place[u], place[v]): bps for (u, v), bps in rates.items() if u in place and v in place}
    if not _connected(len(members), inside):
        inside = {
            (place[u], place[v]): min(rates[hop] for hop in pairwise(config.paths[u, v][0]))
            for u in members
            for v in members
            if u != v
        }
    return NetworkView(len(members), inside, names)


def _view_without(
    now: NetworkNow, rates: Mapping[tuple[int, int], float], members: tuple[int, ...]
) -> NetworkView:
    config = now.declared
    view = network_view(config, rates, members)
    place = {site: k for k, site in enumerate(members)}
    ways = {(u, v): now.primary(u, v) for u in members for v in members if u != v}
    if len(members) == len(config.topology.site_names):
        return replace(view, primary={pair: path for pair, path in ways.items() if path is not None})
    inside = {(place[u], place[v]): bps for (u, v), bps in rates.items() if u in place and v in place}
    if _connected(len(members), inside):
        return view
    mesh = {
        (place[u], place[v]): 0.0 if path is None else min(rates[hop] for hop in pairwise(path))
        for (u, v), path in ways.items()
    }
    return replace(view, rates=mesh)


def _connected(n: int, rates: Mapping[tuple[int, int], float]) -> bool:
    """Whether every site reaches every other over links that carry something."""
    for forward in (True, False):
        reached, todo = {0}, [0]
        while todo:
            u = todo.pop()
            for (a, b), bps in rates.items():
                here, there = (a, b) if forward else (b, a)
                if here == u and bps > 0 and there not in reached:
                    reached.add(there)
                    todo.append(there)
        if len(reached) < n:
            return False
    return True
