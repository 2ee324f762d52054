"""Which of a coflow's pairs of switch ports still have something to send, as bit sets.

A flow that takes all that its two ports have left uses one of them up, so giving a coflow its greedy rates needs
at most a step a port, however many flows it has, if each step finds the next flow at once.
"""

from __future__ import annotations

import numpy as np

from testbed.coflow.demand import Array, Demand


class Ports:
    """What the ports of a switch have left, and which have more than rounding.

    free   of all links, the sending ports first; the last entry is no port's
    slack  what is left of a link that is rounding
    """

    def __init__(self, free: Array, slack: Array) -> None:
        count = self._count = len(free) // 2
        self.sending, self.receiving = free[:count].tolist(), free[count : 2 * count].tolist()
        self.least_sending, self.least_receiving = slack[:count].tolist(), slack[count : 2 * count].tolist()
        self.open_from = _open(self.sending, self.least_sending)
        self.open_to = _open(self.receiving, self.least_receiving)

    def store(self, free: Array) -> None:
        """Into the array that it came from."""
        free[: self._count] = self.sending
        free[self._count : 2 * self._count] = self.receiving


class Pairs:
    """Of the flows of one demand, in its order: by source, then by destination."""

    def __init__(self, demand: Demand) -> None:
        self._src, self._dst = demand.src, demand.dst
        # The destinations of every source, bit o for port o, and where its flows begin in the demand.
        self._to: dict[int, int] = {}
        self._from = 0
        self._place: dict[int, dict[int, int]] = {}
        for place, (src, dst) in enumerate(zip(demand.src.tolist(), demand.dst.tolist(), strict=True)):
            self._from |= 1 << src
            self._to[src] = self._to.get(src, 0) | 1 << dst
            self._place.setdefault(src, {})[dst] = place

    def end(self, over: Array) -> None:
        """Flows that have nothing left."""
        for place in np.flatnonzero(over).tolist():
            src = int(self._src[place])
            self._to[src] &= ~(1 << int(self._dst[place]))
            if not self._to[src]:
                self._from ^= 1 << src

    def fill(self, rates: Array, ports: Ports) -> bool:
        """Add to every flow in turn all that its ports have left; both are changed in place. Whether any got some."""
        some = False
        sources = self._from & ports.open_from
        while sources and ports.open_to:
            source = sources & -sources
            sources ^= source
            src = source.bit_length() - 1
            left, least = ports.sending[src], ports.least_sending[src]
            waiting = self._to[src] & ports.open_to
            while waiting and left > least:
                bit = waiting & -waiting
                waiting ^= bit
                dst = bit.bit_length() - 1
                rate = min(left, ports.receiving[dst])
                rates[self._place[src][dst]] += rate
                some = True
                left -= rate
                ports.receiving[dst] -= rate
                if ports.receiving[dst] <= ports.least_receiving[dst]:
                    ports.open_to ^= bit
            ports.sending[src] = left
            if left <= least:
                ports.open_from ^= source
        return some


def _open(left: list[float], least: list[float]) -> int:
    ports = 0
    for port, (amount, rounding) in enumerate(zip(left, least, strict=True)):
        if amount > rounding:
            ports |= 1 << port
    return ports
