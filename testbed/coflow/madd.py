"""MADD, and what becomes of the capacity that it leaves (Varys, SIGCOMM 2014).

Each coflow in order gets the least rates with which all its flows end together, given what those before it left; one
that needs a link of which nothing is left is skipped. Much stays unused then: after the largest coflow has its port,
all others that need the port are skipped everywhere. What is done with the rest decides the result more than the
order does, so it has a name:

ranked     every flow of every coflow, in the coflows' order, takes all that its links have left: Varys' own scheduler
coflowsim  the skipped share it evenly, flow by flow over all of them; then every flow as above, but by arrival
in_turn    own: the skipped in their order, each sharing evenly among its flows what is left; then by arrival
none       it stays unused
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, get_args

import numpy as np

from agents.coflow.fabric import Fabric
from testbed.coflow.demand import Array, Demand
from testbed.coflow.pairs import Pairs, Ports

Backfill = Literal["ranked", "coflowsim", "in_turn", "none"]
BACKFILLS: tuple[Backfill, ...] = get_args(Backfill)


class Backlog:
    """What a coflow's flows have left, and their rates."""

    def __init__(self, number: int, demand: Demand, fabric: Fabric) -> None:
        self.number = number
        self.demand = demand
        self.routes = demand.routes(fabric)
        self.left = demand.size.copy()
        self.rates = np.zeros(len(demand))
        self.pairs = Pairs(demand) if fabric.routes is None else None
        # Whether any rate is above 0.
        self.moving = False
        self.waited = 0.0

    def end(self, over: Array) -> None:
        """Flows that have nothing left."""
        self.left[over] = 0.0
        self.rates[over] = 0.0
        if self.pairs is not None:
            self.pairs.end(over)

    def fill(self, free: Array, slack: Array) -> None:
        """Flow after flow takes (or adds) all that its links have left; `slack` of a link is rounding."""
        where = np.flatnonzero((self.left > 0) & (free > slack)[self.routes].all(axis=1))
        while len(where):
            flow = where[0]
            links = self.routes[flow]
            rate = free[links].min()
            self.rates[flow] += rate
            self.moving = True
            free[links] -= rate
            where = where[1:]
            where = where[(free > slack)[self.routes[where]].all(axis=1)]


def fill(coflows: Sequence[Backlog], free: Array, slack: Array) -> None:
    """Coflow after coflow takes (or adds) all that its links have left; `free` is used up in place."""
    ports: Ports | None = None
    for coflow in coflows:
        if coflow.pairs is None:
            coflow.fill(free, slack)
            continue
        ports = ports or Ports(free, slack)
        coflow.moving |= coflow.pairs.fill(coflow.rates, ports)
    if ports is not None:
        ports.store(free)


def madd(order: Sequence[Backlog], free: Array, slack: Array, backfill: Backfill) -> None:
    """Rates of coflows in this order, which had none; `free` is used up in place."""
    skipped = []
    for coflow in order:
        load = np.bincount(
            coflow.routes.ravel(), np.repeat(coflow.left, coflow.routes.shape[1]), minlength=len(free)
        )
        used = load > 0
        if (free[used] <= slack[used]).any():
            skipped.append(coflow)
            continue
        seconds = (load[used] / free[used]).max()
        coflow.rates[:] = coflow.left / seconds
        coflow.moving = True
        free[used] -= load[used] / seconds
    if backfill == "none":
        return
    if backfill == "ranked":
        last = order
    else:
        for members in [skipped] if backfill == "coflowsim" else [[coflow] for coflow in skipped]:
            _share(members, free)
        last = sorted(order, key=lambda coflow: coflow.number)
    fill(last, free, slack)


def _share(coflows: Sequence[Backlog], free: Array) -> None:
    """Every flow gets the even share of the tighter of its links, over all flows of these coflows there."""
    if not coflows:
        return
    live = [coflow.left > 0 for coflow in coflows]
    flows = sum(
        np.bincount(coflow.routes[own].ravel(), minlength=len(free))
        for coflow, own in zip(coflows, live, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(flows > 0, np.maximum(free, 0.0) / flows, inf)
    for coflow, own in zip(coflows, live, strict=True):
        routes = coflow.routes[own]
        rates = share[routes].min(axis=1)
        coflow.rates[own] = rates
        coflow.moving |= bool(rates.any())
        np.subtract.at(free, routes.ravel(), np.repeat(rates, routes.shape[1]))
