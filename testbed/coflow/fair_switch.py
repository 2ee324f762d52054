"""Max-min fair sharing of a switch by every flow.

All flows of a pair have one rate, whatever their coflow, so a pair keeps one count of the bytes it has given
to each of its flows, and a flow ends when that count reaches the bytes it began at plus its size.
"""

from __future__ import annotations

import heapq
from math import inf

import numpy as np

from agents.coflow.base import Ranking
from agents.coflow.fabric import Fabric
from testbed.coflow.demand import Demand
from testbed.coflow.waterfill import switch_levels

# Seconds: what ends within this counts as ending now.
_INSTANT = 1e-9


class FairSwitch:
    """An engine of `testbed.coflow.simulator`; new rates at every end of a flow."""

    def __init__(self, fabric: Fabric) -> None:
        ports = fabric.ports
        capacity = np.array([float(rate) for rate in fabric.capacity])
        self._ports = ports
        self._capacity = capacity
        self._send, self._receive = capacity[:ports], capacity[ports:]
        self._levels = (self._send.copy(), self._receive.copy())
        self._now = 0.0
        self._count = np.zeros((ports, ports))
        self._given = np.zeros((ports, ports))
        self._due = np.full((ports, ports), inf)
        self._rates = np.zeros((ports, ports))
        self._queues: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self._flows: dict[int, int] = {}
        self._size: dict[int, float] = {}
        self._next = inf

    def add(self, number: int, demand: Demand) -> None:
        self._flows[number] = len(demand)
        self._size[number] = demand.bytes
        given = self._given[demand.src, demand.dst]
        for src, dst, due in zip(
            demand.src.tolist(), demand.dst.tolist(), (given + demand.size).tolist(), strict=True
        ):
            heapq.heappush(self._queues.setdefault((src, dst), []), (due, number))
        self._count[demand.src, demand.dst] += 1
        self._due[demand.src, demand.dst] = np.minimum(self._due[demand.src, demand.dst], given + demand.size)

    def rank(self, ranking: Ranking) -> None:
        self._share()

    def next(self) -> float:
        return self._next

    def advance(self, now: float) -> list[int]:
        if now > self._now:
            self._given += self._rates * (now - self._now)
            self._now = now
        if now < self._next - _INSTANT:
            return []
        done = []
        over = self._due - self._given <= self._rates * _INSTANT + 1e-12 * self._given
        for src, dst in np.argwhere(over).tolist():
            queue = self._queues[src, dst]
            limit = self._given[src, dst] * (1 + 1e-12) + self._rates[src, dst] * _INSTANT
            while queue and queue[0][0] <= limit:
                _, number = heapq.heappop(queue)
                self._count[src, dst] -= 1
                self._flows[number] -= 1
                if not self._flows[number]:
                    del self._flows[number]
                    done.append(number)
            if queue:
                self._due[src, dst] = queue[0][0]
            else:
                # An empty pair counts from nought again, which keeps the numbers small.
                self._due[src, dst] = inf
                self._given[src, dst] = 0.0
        self._share()
        return sorted(done)

    def loads(self, number: int) -> dict[int, float]:
        total = np.zeros(2 * self._ports)
        for (src, dst), left in self._left(number).items():
            total[src] += left
            total[self._ports + dst] += left
        return {int(link): float(total[link] / self._capacity[link]) for link in np.flatnonzero(total)}

    def sent(self, number: int) -> float:
        return self._size[number] - sum(self._left(number).values())

    def rate(self, number: int) -> float:
        return float(sum(self._rates[pair] for pair in self._left(number)))

    def waited(self, number: int) -> float:
        # Whoever has something to send sends.
        return 0.0

    def _left(self, number: int) -> dict[tuple[int, int], float]:
        return {
            pair: due - float(self._given[pair])
            for pair, queue in self._queues.items()
            for due, owner in queue
            if owner == number
        }

    def _share(self) -> None:
        x, y = self._levels = switch_levels(self._count, self._send, self._receive, self._levels)
        self._rates = np.where(self._count > 0, np.minimum(x[:, None], y[None, :]), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            wait = np.where(self._rates > 0, (self._due - self._given) / self._rates, inf)
        self._next = self._now + max(float(wait.min()), 0.0)
