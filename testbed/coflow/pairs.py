"""Which of a coflow's pairs of switch ports still have something to send, as bit sets.

A flow that takes all that its two ports have left uses one of them up, so giving a coflow its greedy rates needs
at most a step a port, however many flows it has, if each step finds the next flow at once.
"""

from __future__ import annotations

import numpy as np

from testbed.coflow.demand import Array, Demand


class Pairs:
    """Of the flows of one demand, in its order: by source, then by destination."""

    def __init__(self, demand: Demand) -> None:
        self._src, self._dst = demand.src, demand.dst
        # The destinations of every source, bit o for port o, and where its flows begin in the demand.
        self._to: dict[int, int] = {}
        self._place: dict[int, dict[int, int]] = {}
        for place, (src, dst) in enumerate(zip(demand.src.tolist(), demand.dst.tolist(), strict=True)):
            self._to[src] = self._to.get(src, 0) | 1 << dst
            self._place.setdefault(src, {})[dst] = place

    def end(self, over: Array) -> None:
        """Flows that have nothing left."""
        for place in np.flatnonzero(over).tolist():
            src = int(self._src[place])
            self._to[src] &= ~(1 << int(self._dst[place]))
            if not self._to[src]:
                del self._to[src]

    def fill(self, rates: Array, free: Array, slack: Array) -> None:
        """Add to every flow in turn all that its ports have left; both arrays are changed in place.

        free   of all links, the sending ports first; the last entry is no port's
        slack  what is left of a link that is rounding
        """
        ports = len(free) // 2
        sending = free[:ports].tolist()
        receiving = free[ports : 2 * ports].tolist()
        open_to = 0
        for port, (left, least) in enumerate(zip(receiving, slack[ports : 2 * ports].tolist(), strict=True)):
            if left > least:
                open_to |= 1 << port
        for src, to in self._to.items():
            left, least = sending[src], float(slack[src])
            waiting = to & open_to
            while waiting and left > least:
                bit = waiting & -waiting
                waiting ^= bit
                dst = bit.bit_length() - 1
                rate = min(left, receiving[dst])
                rates[self._place[src][dst]] += rate
                left -= rate
                receiving[dst] -= rate
                if receiving[dst] <= slack[ports + dst]:
                    open_to ^= bit
            sending[src] = left
        free[:ports] = sending
        free[ports : 2 * ports] = receiving
