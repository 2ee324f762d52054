"""Rates of every flow on any routes: greedy, MADD or fair within classes, at a stated cadence."""

from __future__ import annotations

from math import inf

import numpy as np

from agents.coflow.base import Allocation, Ranking
from agents.coflow.fabric import Fabric
from testbed.coflow.demand import Array, Demand, link_seconds
from testbed.coflow.madd import Backfill, Backlog, fill, madd
from testbed.coflow.waterfill import max_min, switch_levels

# Seconds: what ends within this counts as ending now.
_INSTANT = 1e-9
# Relative to a link's capacity: what is left of it that is rounding.
_NOTHING = 1e-9


class FlowEngine:
    """An engine of `testbed.coflow.simulator`.

    backfill   of MADD: what becomes of what it leaves
    refresh_s  rates are renewed at every coflow's arrival and end, and besides: 0 = at every end of a flow,
               else every so many seconds (infinity: not). In between, what a flow that has ended leaves free
               stays unused.
    """

    def __init__(
        self, fabric: Fabric, allocation: Allocation, refresh_s: float = 0.0, backfill: Backfill = "ranked"
    ) -> None:
        self._fabric = fabric
        self._allocation = allocation
        self._refresh = refresh_s
        self._backfill: Backfill = backfill
        # The last link is the one that fills up short routes.
        self._capacity = np.array([*(float(rate) for rate in fabric.capacity), inf])
        self._slack = np.where(np.isinf(self._capacity), 0.0, _NOTHING * self._capacity)
        self._now = 0.0
        self._coflows: dict[int, Backlog] = {}
        self._waited: dict[int, float] = {}
        self._ranking = Ranking(())
        self._renew_at = inf
        self._levels = (self._capacity[: fabric.ports].copy(), self._capacity[fabric.ports : -1].copy())

    def add(self, number: int, demand: Demand) -> None:
        self._coflows[number] = Backlog(number, demand, self._fabric)

    def rank(self, ranking: Ranking) -> None:
        self._ranking = ranking
        self._renew()

    def next(self) -> float:
        soonest = self._renew_at
        for coflow in self._coflows.values():
            soonest = min(soonest, self._now + self._wait(coflow))
        return soonest

    def advance(self, now: float) -> list[int]:
        passed = max(now - self._now, 0.0)
        self._now = now
        done = []
        flow_ended = False
        for coflow in list(self._coflows.values()):
            if not coflow.moving:
                coflow.waited += passed
                continue
            moving = coflow.rates > 0
            coflow.left -= coflow.rates * passed
            over = moving & (coflow.left <= coflow.rates * _INSTANT)
            if over.any():
                flow_ended = True
                coflow.end(over)
                coflow.moving = bool(coflow.rates.any())
                if not coflow.left.any():
                    self._waited[coflow.number] = coflow.waited
                    del self._coflows[coflow.number]
                    done.append(coflow.number)
        if done or (flow_ended and self._refresh == 0) or now >= self._renew_at - _INSTANT:
            self._renew()
        return done

    def loads(self, number: int) -> dict[int, float]:
        coflow = self._coflows[number]
        return link_seconds(coflow.routes, coflow.left, self._fabric)

    def sent(self, number: int) -> float:
        coflow = self._coflows[number]
        return float(coflow.demand.bytes - coflow.left.sum())

    def rate(self, number: int) -> float:
        return float(self._coflows[number].rates.sum())

    def waited(self, number: int) -> float:
        return self._waited.pop(number)

    def _wait(self, coflow: Backlog) -> float:
        """Seconds until something of a coflow ends: a flow, or with a cadence the whole of it."""
        if not coflow.moving:
            return inf
        live = coflow.left > 0
        rates = coflow.rates[live]
        if self._refresh == 0:
            moving = rates > 0
            return float((coflow.left[live][moving] / rates[moving]).min(initial=inf))
        if not (rates > 0).all():
            return inf
        return float((coflow.left[live] / rates).max())

    def _renew(self) -> None:
        self._renew_at = self._now + self._refresh if self._refresh > 0 and self._coflows else inf
        free = self._capacity.copy()
        classes = [
            [self._coflows[number] for number in members if number in self._coflows]
            for members in self._ranking.classes
        ]
        for members in classes:
            for coflow in members:
                if coflow.moving:
                    coflow.rates[:] = 0.0
                    coflow.moving = False
        if self._allocation == "madd":
            order = [coflow for members in classes for coflow in members]
            madd(order, free, self._slack, self._backfill)
            return
        single: list[Backlog] = []
        for members in classes:
            if len(members) == 1 and self._allocation == "greedy":
                single += members
            elif members:
                fill(single, free, self._slack)
                single = []
                self._fair(members, free)
        fill(single, free, self._slack)

    def _fair(self, members: list[Backlog], free: Array) -> None:
        live = [np.flatnonzero(coflow.left > 0) for coflow in members]
        routes = np.concatenate([c.routes[own] for c, own in zip(members, live, strict=True)])
        if self._fabric.routes is None:
            ports = self._fabric.ports
            src, dst = routes[:, 0], routes[:, 1] - ports
            count = np.zeros((ports, ports))
            np.add.at(count, (src, dst), 1.0)
            send, receive = np.maximum(free[:ports], 0.0), np.maximum(free[ports:-1], 0.0)
            x, y = self._levels = switch_levels(count, send, receive, self._levels)
            rates = np.minimum(x[src], y[dst])
            np.subtract.at(free, routes.ravel(), np.repeat(rates, 2))
        else:
            rates = max_min(routes, free)
        start = 0
        for coflow, own in zip(members, live, strict=True):
            coflow.rates[own] = rates[start : start + len(own)]
            coflow.moving = bool(coflow.rates.any())
            start += len(own)
