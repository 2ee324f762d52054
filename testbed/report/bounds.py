"""The time that no scheduler can beat on a run's links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from testbed.report.links_over_time import carries_bps
from testbed.report.measurements import Iteration, Measurements, beginning

if TYPE_CHECKING:
    from testbed.simulation.changing import RateHistory

_NS = 1e-9


def bounds_of(run: Measurements) -> Callable[[Sequence[Iteration], int], float | None]:
    """What no scheduler can beat in a run: from synchronisations and the bytes at every site to seconds.

    Links are as they were when the run began, which need not be as the topology declares, and became as
    `changes.csv` tells. On links that stay the same the seconds are those of any synchronisation; where they change
    it is the mean over the given ones, each begun when its last gradient was ready. None where there is no such
    time: a single site, links that do not join all sites, or links that changed and no synchronisation given.
    """
    history: list[RateHistory | None] = []  # made when first asked for: many reports have nothing to bound

    def bound(synchronisations: Sequence[Iteration], nbytes: int) -> float | None:
        if not history:
            history.append(_history(run))
        rates = history[0]
        if rates is None:
            return None
        if rates.constant:
            return rates.least_seconds(nbytes, 0.0)
        began_ns = beginning(run.manifest, run.links)
        found = [rates.least_seconds(nbytes, (i.ready_ns - began_ns) * _NS) for i in synchronisations]
        known = [seconds for seconds in found if seconds is not None]
        return fmean(known) if known and len(known) == len(found) else None

    return bound


def _history(run: Measurements) -> RateHistory | None:
    """The rates of a run's links; None where there are none."""
    # Imported here: the linear programme's library takes longer to load than most reports take.
    from testbed.simulation.changing import RateHistory

    sites: dict[str, int] = {}
    for link in run.manifest.links:
        sites.setdefault(link.src, len(sites))
        sites.setdefault(link.dst, len(sites))
    if not sites:
        return None
    initial = {
        (sites[link.src], sites[link.dst]): carries_bps(link.rate_bps, link.state)
        for link in run.manifest.links
    }
    changes = []
    for at, rows in groupby(run.changes, key=lambda row: float(row["t_s"])):
        became = {
            (sites[row["src"]], sites[row["dst"]]): carries_bps(row["rate_bps"], row["state"])
            for row in rows
        }
        changes.append((at, became))
    return RateHistory(initial, changes)
