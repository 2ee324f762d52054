"""The least time on a network whose rates change meanwhile. Own.

Until a scheme has finished, T after it began, no directed link can have carried more bits than the integral of its
rate over that time. At constant rates equal to the means over T the same bits would have fitted, so with R the
limit of constant rates (`testbed.simulation.bounds`) every scheme needs T R(mean over T) >= bits. R grows with every
rate and is proportional to all of them together, so T R(mean) = R(integral) never falls as T grows: the least T that
satisfies it is a bound for all for whom R is one, whatever they know of the future.

R is concave too, so what a stretch of constant rates adds to R(integral) is at least R of the stretch alone, and
that says where to look: R(integral so far) + R(rates now) t reaches the bits no sooner than R(integral) does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scipy.optimize import brentq

from testbed.simulation.bounds import Rates, bound
from topologies.dynamics import Dynamics
from topologies.errors import UsageError
from topologies.model import Topology

MOST_BEFORE = 2_000_000
"""Values of links that are drawn on the way to a start: about three seconds of computing."""
MOST_MEANWHILE = 500
"""Changes while one synchronisation lasts; each is two linear programmes."""
PRECISION = 1e-6
"""Of the seconds, relative. The least time is given that much too small, never too large."""


class RateHistory:
    """The rates of all directed links over time.

    Args:
        initial: bit/s of each directed link {(u, v): rate} of sites 0..n-1 until the first change; 0 where a link
            carries nothing.
        changes: moments in seconds, in order, and what the links that changed then had from then on; links that
            `initial` does not know are an error.
    """

    def __init__(self, initial: Rates, changes: Sequence[tuple[float, Rates]] = ()) -> None:
        self._from = [-math.inf]
        self._rates: list[dict[tuple[int, int], float]] = [dict(initial)]
        for at, changed in changes:
            unknown = changed.keys() - initial.keys()
            if unknown or at < self._from[-1]:
                raise UsageError(f"at {at} s: {'no such link' if unknown else 'changes must be in order of time'}")
            rates = {**self._rates[-1], **changed}
            if at == self._from[-1]:
                self._rates[-1] = rates
            elif rates != self._rates[-1]:
                self._from.append(at)
                self._rates.append(rates)
        self._limits: dict[tuple[float, ...], float] = {}

    @property
    def constant(self) -> bool:
        """Whether nothing ever changes."""
        return len(self._rates) == 1

    def least_seconds(self, nbytes: int, start_s: float) -> float | None:
        """The least time in which `nbytes` at every site can be summed and spread, begun at `start_s`.

        None where that never ends, because the last rates do not join all sites.
        """
        bits = 8.0 * nbytes
        carried = dict.fromkeys(self._rates[0], 0.0)
        sent, since = 0.0, start_s
        for rates, until in self._stretches(start_s):
            limit = self._limit(rates)
            if limit:
                end = min(until, since + (bits - sent) / limit)
                if since == start_s and end < until:
                    return end - start_s  # one stretch is all of it
            else:
                end = since + _all_that_counts(rates, bits) if math.isinf(until) else until
                if math.isinf(end):
                    return None
            by_end = _after(carried, rates, end - since)
            at_end = self._limit(by_end)
            if at_end >= bits:
                slack = PRECISION * (end - start_s)
                found = brentq(self._missing, 0.0, end - since, args=(carried, rates, bits), xtol=slack)
                return float(since + max(0.0, found - slack) - start_s)
            if end < until:
                return end - start_s if limit else None  # enough, but for the rounding of the linear programme
            carried, sent, since = by_end, at_end, end
        return None

    def _stretches(self, start_s: float) -> Iterator[tuple[Mapping[tuple[int, int], float], float]]:
        """The rates from `start_s` on, each with the moment until which they hold."""
        first = bisect_right(self._from, start_s) - 1
        ends = [*self._from[1:], math.inf]
        yield from zip(self._rates[first:], ends[first:], strict=True)

    def _missing(self, seconds: float, carried: Rates, rates: Rates, bits: float) -> float:
        """How many bits more than needed the limit allows so long after `carried`."""
        return self._limit(_after(carried, rates, seconds)) - bits

    def _limit(self, capacities: Rates) -> float:
        """R; 0 where the links that have a capacity do not join all sites."""
        key = tuple(capacities.values())
        if key not in self._limits:
            try:
                self._limits[key] = bound(capacities).rate_bps
            except UsageError:
                self._limits[key] = 0.0
        return self._limits[key]


def least_seconds(
    topology: Topology,
    dynamics: Dynamics,
    nbytes: int,
    start_s: float = 0.0,
    *,
    seed: int = 1,
    scale: float = 1.0,
    folder: Path | None = None,
) -> float:
    """The least time on a topology whose links change by themselves, begun `start_s` after the changes.

    `topology` is scaled already; the other arguments are those of `Dynamics.changes`, and so are the errors.

    Raises:
        UsageError: too many changes come before `start_s`, or before the end.
    """
    if not start_s * len(topology.directed) <= MOST_BEFORE * dynamics.every_s:
        raise UsageError(
            f"the links change too often until {start_s:g} s to be followed",
            hint="begin earlier, or let them change less often (every=)",
        )
    initial: dict[tuple[int, int], float] = {arc: float(rate) for arc, rate in topology.rates().items()}
    arcs = [(link.src, link.dst) for link in topology.directed]
    known_s = bound(topology, nbytes).seconds or 0.0
    while True:
        known_s *= 2  # changes have no end, and what is needed of them shows when the time is known
        rates = dict(initial)
        changes: list[tuple[float, dict[tuple[int, int], float]]] = []
        for at, links in dynamics.changes(topology, start_s + known_s, seed=seed, scale=scale, folder=folder):
            became = {arcs[k]: float(change.rate.bps) for k, change in links.items() if change.rate is not None}
            if at <= start_s:
                rates |= became
            else:
                changes.append((at, became))
            if len(changes) > MOST_MEANWHILE:
                raise UsageError(
                    f"the links change more than {MOST_MEANWHILE} times before {nbytes} bytes can be through",
                    hint="give fewer bytes, or let them change less often (every=)",
                )
        seconds = RateHistory(rates, changes).least_seconds(nbytes, start_s)
        if seconds is not None and seconds <= known_s:
            return seconds


def _all_that_counts(rates: Rates, bits: float) -> float:
    """Seconds after which more time on these links adds nothing: each needs to carry every bit twice at most, up to
    a root and down from it. Infinite where no link has a rate."""
    return max((2 * bits / rate for rate in rates.values() if rate), default=math.inf)


def _after(carried: Rates, rates: Rates, seconds: float) -> dict[tuple[int, int], float]:
    """What the links have carried at most, so long after `carried`; whole bits, upwards."""
    return {arc: float(math.ceil(carried[arc] + rate * seconds)) for arc, rate in rates.items()}
