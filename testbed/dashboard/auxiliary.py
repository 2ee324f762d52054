"""Auxiliary transmission as the page's records: which ways round chunks took, and how many a second. Pure.

An agent counts the chunks that it queued by peer, path number, and whether that path was another than the hop's
own. The number of a path means nothing without its source, so the page is told the sites that the path visits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from testbed.telemetry.query import Series
from topologies.model import Topology
from topologies.paths import Path, path_sets

METRIC: Final = "stormbed_agent_path_chunks_total"
QUERY: Final = f'sum by (instance, peer, path) (rate({METRIC}{{auxiliary="1"}}[3s])) > 0'

Flow = tuple[str, str, int]
"""From a site to a site over the path of a number."""


class Routes:
    """The sites that each path visits."""

    def __init__(self, topology: Topology) -> None:
        self._names = topology.site_names
        self._index = {name: k for k, name in enumerate(self._names)}
        self._paths: Mapping[tuple[int, int], tuple[Path, ...]] | None = None
        self._topology = topology

    def record(self, t: float, rates: Mapping[Flow, float]) -> dict[str, Any]:
        """What goes round at a moment, the most first; a path that the topology does not have is left out."""
        flows = [
            {"sites": list(path), "chunks_per_s": round(rate, 2)}
            for flow, rate in sorted(rates.items(), key=lambda item: -item[1])
            if rate > 0 and (path := self._path(flow)) is not None
        ]
        return {"t": t, "flows": flows}

    def _path(self, flow: Flow) -> Path | None:
        src, dst, number = flow
        if src not in self._index or dst not in self._index:
            return None
        # Found only when something goes round: for a large network it takes a moment.
        self._paths = self._paths or path_sets(self._topology)
        paths = self._paths.get((self._index[src], self._index[dst]), ())
        return paths[number] if 0 <= number < len(paths) else None


def of_series(series: Iterable[Series]) -> dict[Flow, float]:
    """Chunks per second now, from the answer to QUERY."""
    return {(s.labels["instance"], s.labels["peer"], int(s.labels["path"])): s.last for s in series}


def of_run(metrics: Mapping[str, Any], offset_s: float, routes: Routes) -> list[dict[str, Any]]:
    """Records of a finished run, one a second from the first chunk that went round to the last.

    Args:
        metrics: what `testbed.telemetry.export` wrote.
        offset_s: the run's time at unix time 0.
    """
    bins: dict[int, dict[Flow, float]] = {}
    for one in metrics.get("series", ()):
        labels: Mapping[str, str] = one["labels"]
        if labels.get("__name__") != METRIC or labels.get("auxiliary") != "1":
            continue
        flow = (labels["instance"], labels["peer"], int(labels["path"]))
        samples: Sequence[Sequence[float]] = one["samples"]
        for (before_s, before), (at_s, value) in itertools.pairwise(samples):
            if value > before and at_s > before_s:
                second = bins.setdefault(math.floor(before_s + offset_s), {})
                second[flow] = second.get(flow, 0.0) + (value - before) / (at_s - before_s)
    if not bins:
        return []
    return [routes.record(float(t), bins.get(t, {})) for t in range(min(bins), max(bins) + 2)]
