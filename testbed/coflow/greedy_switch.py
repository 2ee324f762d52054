"""Greedy rates in priority order on a switch of equal ports.

Each flow in order takes all that its two ports have left, so a rate is all or nothing, and the sets of free
ports are bit sets. When a flow ends only coflows from its rank on can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from agents.coflow.base import Ranking
from agents.coflow.fabric import Fabric
from testbed.coflow.demand import Demand

# A port as a bit.
Bit = int

# What is left of a load that is rounding, relative to the whole.
_ROUNDING = 1e-9


def instant(now: float) -> float:
    """Until when what ends counts as ending now."""
    return now * (1 + 1e-12) + 1e-12


class _Coflow:
    def __init__(self, number: int, demand: Demand) -> None:
        self.number = number
        self.senders: Bit = 0
        self.to: dict[Bit, Bit] = {}
        self.left: dict[Bit, dict[Bit, float]] = {}
        self.send: dict[Bit, float] = {}
        self.receive: dict[Bit, float] = {}
        self.rank = -1
        # Flows under way, and since when there is none.
        self.running = 0
        self.idle_since = 0.0
        self.waited = 0.0
        self.flows = len(demand)
        self.size = demand.bytes
        self.booked = self.size
        for src, dst, size in zip(
            demand.src.tolist(), demand.dst.tolist(), demand.size.tolist(), strict=True
        ):
            i, o = 1 << src, 1 << dst
            self.senders |= i
            self.to[i] = self.to.get(i, 0) | o
            self.left.setdefault(i, {})[o] = size
            self.send[i] = self.send.get(i, 0.0) + size
            self.receive[o] = self.receive.get(o, 0.0) + size
        self.whole_send, self.whole_receive = dict(self.send), dict(self.receive)

    def book(self, i: Bit, o: Bit, sent: float) -> None:
        self.send[i] -= sent
        self.receive[o] -= sent
        self.booked -= sent


class _Running:
    __slots__ = ("coflow", "end", "to")

    def __init__(self, coflow: _Coflow, to: Bit, end: float) -> None:
        self.coflow = coflow
        self.to = to
        self.end = end


class GreedySwitch:
    """An engine of `testbed.coflow.simulator`; new rates at every end of a flow."""

    def __init__(self, fabric: Fabric) -> None:
        self._rate = float(fabric.capacity[0])
        self._ports = fabric.ports
        self._now = 0.0
        self._coflows: dict[int, _Coflow] = {}
        self._order: list[_Coflow] = []
        self._running: dict[Bit, _Running] = {}
        self._waited: dict[int, float] = {}
        every = (1 << fabric.ports) - 1
        # Free ports before each rank.
        self._free: list[tuple[Bit, Bit]] = [(every, every)]

    def add(self, number: int, demand: Demand) -> None:
        coflow = self._coflows[number] = _Coflow(number, demand)
        coflow.idle_since = self._now

    def rank(self, ranking: Ranking) -> None:
        self._order = [self._coflows[number] for number in ranking.order]
        for rank, coflow in enumerate(self._order):
            coflow.rank = rank
        del self._free[1:]
        self._match(0)

    def next(self) -> float:
        return min((flow.end for flow in self._running.values()), default=inf)

    def advance(self, now: float) -> list[int]:
        """Move to `now`; the coflows that ended then."""
        self._now = now
        until = instant(now)
        ended = [i for i, flow in self._running.items() if flow.end <= until]
        if not ended:
            return []
        first = len(self._order)
        done = []
        for i in ended:
            flow = self._running.pop(i)
            coflow, o = flow.coflow, flow.to
            self._stop(coflow)
            coflow.book(i, o, coflow.left[i].pop(o))
            coflow.to[i] ^= o
            if not coflow.to[i]:
                coflow.senders ^= i
            coflow.flows -= 1
            first = min(first, coflow.rank)
            if not coflow.flows:
                done.append(coflow.number)
                self._waited[coflow.number] = coflow.waited
                del self._coflows[coflow.number]
        self._match(first)
        return done

    def loads(self, number: int) -> dict[int, float]:
        coflow = self._coflows[number]
        send, receive = dict(coflow.send), dict(coflow.receive)
        for i, flow in self._running.items():
            if flow.coflow is coflow:
                sent = coflow.left[i][flow.to] - (flow.end - self._now) * self._rate
                send[i] -= sent
                receive[flow.to] -= sent
        loads: dict[int, float] = {}
        for base, side, whole in (
            (0, send, coflow.whole_send),
            (self._ports, receive, coflow.whole_receive),
        ):
            for bit, amount in side.items():
                if amount > _ROUNDING * whole[bit]:
                    loads[base + bit.bit_length() - 1] = amount / self._rate
        return loads

    def sent(self, number: int) -> float:
        coflow = self._coflows[number]
        under_way = sum(
            coflow.left[i][flow.to] - (flow.end - self._now) * self._rate
            for i, flow in self._running.items()
            if flow.coflow is coflow
        )
        return coflow.size - coflow.booked + under_way

    def rate(self, number: int) -> float:
        coflow = self._coflows[number]
        return self._rate * sum(flow.coflow is coflow for flow in self._running.values())

    def waited(self, number: int) -> float:
        return self._waited.pop(number)

    def _stop(self, coflow: _Coflow) -> None:
        coflow.running -= 1
        if not coflow.running:
            coflow.idle_since = self._now

    def _match(self, first: int) -> None:
        """Give the ports out again from rank `first` on."""
        before = {i: flow for i, flow in self._running.items() if flow.coflow.rank >= first}
        # Coflows that have ended keep their place in the order until the next ranking, without flows.
        fresh = self._assign(self._order, first)
        for i, flow in before.items():
            if i in fresh and fresh[i] == (flow.coflow, flow.to):
                del fresh[i]
                continue
            del self._running[i]
            self._stop(flow.coflow)
            left = (flow.end - self._now) * self._rate
            flow.coflow.book(i, flow.to, flow.coflow.left[i][flow.to] - left)
            flow.coflow.left[i][flow.to] = left
        for i, (coflow, o) in fresh.items():
            if not coflow.running:
                coflow.waited += self._now - coflow.idle_since
            coflow.running += 1
            self._running[i] = _Running(coflow, o, self._now + coflow.left[i][o] / self._rate)

    def _assign(self, order: Sequence[_Coflow], first: int) -> dict[Bit, tuple[_Coflow, Bit]]:
        free = self._free
        del free[first + 1 :]
        senders, receivers = free[first]
        fresh: dict[Bit, tuple[_Coflow, Bit]] = {}
        for coflow in order[first:]:
            waiting = coflow.senders & senders
            if waiting and receivers:
                to = coflow.to
                while waiting:
                    i = waiting & -waiting
                    waiting ^= i
                    open_to = to[i] & receivers
                    if open_to:
                        o = open_to & -open_to
                        receivers ^= o
                        senders ^= i
                        fresh[i] = (coflow, o)
            free.append((senders, receivers))
        return fresh
