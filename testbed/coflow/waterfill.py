"""Max-min fair rates as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_ROUNDS = 400
# Relative to the largest capacity.
_SETTLED = 1e-12
_FULL = 1e-12


def switch_levels(
    count: Array, send: Array, receive: Array, start: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Levels x, y of a switch's ports: a flow from i to o gets min(x[i], y[o]), which is max-min fair.

    count    flows of every pair (ports x ports)
    send     free capacity of the sending ports; receive: of the receiving ports
    start    levels to begin with, those of a similar problem: changed in place and returned

    A port's level is what fills it given the levels of the other side, its capacity where nothing can fill
    it. Newton's method a side at a time: the load is concave and piecewise linear in the level. Settled
    levels are a proof in themselves: every flow then has a full port on which no flow is faster.
    """
    x, y = start
    scale = max(float(send.max(initial=0.0)), float(receive.max(initial=0.0)))
    other = count.T
    for _ in range(_ROUNDS):
        change = max(_side(count, send, x, y), _side(other, receive, y, x))
        if change <= _SETTLED * scale:
            return x, y
    return _filled(count, send, receive)


def _side(count: Array, capacity: Array, level: Array, other: Array) -> float:
    """One Newton step of one side's levels; returns the largest change."""
    here = count > 0
    # A level above all of the other side's has no slope: start from the highest that has one.
    top = np.where(here, other[None, :], 0.0).max(axis=1)
    base = np.minimum(level, top)
    bound = here & (other[None, :] >= base[:, None])
    slope = np.where(bound, count, 0).sum(axis=1)
    fixed = np.where(bound, 0.0, count * other[None, :]).sum(axis=1)
    fresh = np.divide(capacity - fixed, slope, out=capacity.copy(), where=slope > 0)
    np.maximum(fresh, 0.0, out=fresh)
    np.minimum(fresh, capacity, out=fresh)
    change = float(np.abs(fresh - level).max(initial=0.0))
    level[:] = fresh
    return change


def _filled(count: Array, send: Array, receive: Array) -> tuple[Array, Array]:
    """The same by progressive filling: a port a round."""
    ports = len(send)
    left = count.astype(float)
    free = np.concatenate((send, receive)).astype(float)
    level = np.concatenate((send, receive)).astype(float)
    for _ in range(2 * ports):
        flows = np.concatenate((left.sum(axis=1), left.sum(axis=0)))
        if not flows.any():
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(flows > 0, np.maximum(free, 0.0) / flows, np.inf)
        port = int(share.argmin())
        rate = level[port] = float(share[port])
        if port < ports:
            free[ports:] -= rate * left[port]
            left[port] = 0
        else:
            free[:ports] -= rate * left[:, port - ports]
            left[:, port - ports] = 0
        free[port] = 0.0
    return level[:ports], level[ports:]


def max_min(routes: Array, free: Array) -> Array:
    """Rates of flows over any routes (one row each) by progressive filling. `free` is used up in place."""
    rates = np.zeros(len(routes))
    waiting = np.arange(len(routes))
    while len(waiting):
        rows = routes[waiting]
        flows = np.bincount(rows.ravel(), minlength=len(free))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(flows > 0, np.maximum(free, 0.0) / flows, np.inf)
        least = share.min()
        full = share <= least * (1 + _FULL)
        settled = full[rows].any(axis=1)
        rates[waiting[settled]] = least
        np.subtract.at(free, rows[settled].ravel(), least)
        free[full] = 0.0
        waiting = waiting[~settled]
    return rates
