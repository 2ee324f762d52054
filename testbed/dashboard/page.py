"""What the page is told: the network once, and then records of what happened. Pure.

Both sources speak of the same things. `t` is always seconds since the beginning, of the run or of the page:

    frames     [{"t", "achieved_bps", "configured_bps", "drops", "state"}]: one list entry a directed link
    syncs      [{"t", "scheduler", "seconds", "iteration", "segment"}]: a finished synchronisation
    plans      [{"t", "scheduler", "label", "source", "roots"}]: from then on these trees are in use
    policies   [{"t", "version", "job"}]
    segments   [{"label", "scheduler", "t0", "t1", "iterations", "status"}]
    events     [{"t", "kind", "level", "text"}]: level is info, change, warning or failure
    sites      [{"t", "rows"}]: a row a site, of what a standing testbed says of it
    auxiliary  [{"t", "flows"}]: what goes another way than its hop's own, and over which sites
    phases     {site: [[start, ready, done, end]]}: a worker's iterations, of a finished run
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from topologies import drawing
from topologies.model import Topology

SCHEMA: Final = 1
WIDTH: Final = 1000.0
HEIGHT: Final = 620.0
RECORDS: Final = ("frames", "syncs", "plans", "policies", "segments", "events", "sites", "auxiliary")

# Events of a testbed's log that a reader of the page wants, and how loud they are.
TESTBED_EVENTS: Final[Mapping[str, str]] = {
    "link_set": "change",
    "link_reset": "change",
    "link_changes": "change",
    "link_down": "failure",
    "link_up": "change",
    "blackhole": "failure",
    "dynamics_start": "info",
    "dynamics_stop": "info",
    "calibrated": "info",
    "problem": "failure",
    "signal": "warning",
    "shutdown": "warning",
}
RUN_EVENTS: Final[Mapping[str, str]] = {
    "workers-joined": "info",
    "job-closed": "info",
    "note": "warning",
    "problem": "failure",
}


def describe_network(topology: Topology) -> dict[str, Any]:
    """Sites with their places on a canvas of WIDTH x HEIGHT, and directed links in the topology's order."""
    places = drawing._layout(topology, WIDTH, HEIGHT)
    return {
        "topology": topology.name,
        "width": WIDTH,
        "height": HEIGHT,
        "sites": [
            {"name": name, "x": round(x, 1), "y": round(y, 1), "workers": site.workers}
            for (name, site), (x, y) in zip(topology.sites.items(), places, strict=True)
        ],
        "links": [
            {
                "src": link.src,
                "dst": link.dst,
                "rate_bps": link.rate.bps,
                "delay_s": link.delay.seconds,
                "loss_ratio": link.loss.ratio,
            }
            for link in topology.directed
        ],
    }


def plan_record(t: float, label: str, plan: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A plan in the form of `testbed plan --format json` as a record; one without roots draws no tree."""
    return {
        "t": t,
        "label": label,
        "scheduler": plan.get("scheduler", label),
        "source": source,
        "roots": list(plan.get("roots", ())),
    }


def event_text(event: Mapping[str, Any]) -> str:
    """An event of a log in a few words."""
    kind = str(event.get("kind", ""))
    link = f"{event.get('src')} > {event.get('dst')}"
    if kind == "link_set":
        return f"{link} set to {_mbps(event.get('rate_bps'))}"
    if kind == "link_changes":
        return changes_text(event.get("links", ()))
    if kind == "link_reset":
        return "all links reset" if event.get("src") is None else f"{link} reset"
    if kind == "link_down":
        return f"{event.get('src')} - {event.get('dst')} cut"
    if kind == "link_up":
        return f"{event.get('src')} - {event.get('dst')} mended"
    if kind == "blackhole":
        return f"{link} {'drops everything' if event.get('on') else 'forwards again'}"
    if kind == "calibrated":
        return f"calibrated: {event.get('verdict')}"
    if kind == "signal":
        where = event.get("site") or "the testbed"
        return f"{event.get('signal')} sent to process {event.get('pid')} of {where}"
    if kind in ("note", "problem"):
        return str(event.get("text", kind))
    return kind.replace("_", " ").replace("-", " ")


def changes_text(links: Iterable[Mapping[str, Any]]) -> str:
    """What became of several links at one moment."""
    rows = list(links)
    cut = [row for row in rows if row.get("state") not in (None, "up")]
    if cut:
        names = ", ".join(f"{row['src']} > {row['dst']}" for row in cut[:3])
        return f"{names}{f' and {len(cut) - 3} more' if len(cut) > 3 else ''}: {cut[0]['state']}"
    if len(rows) == 1:
        return f"{rows[0]['src']} > {rows[0]['dst']} now {_mbps(rows[0].get('rate_bps'))}"
    return f"{len(rows)} directions changed"


def _mbps(bps: Any) -> str:
    return "the same rate" if bps is None else f"{float(bps) / 1e6:.4g} Mbit/s"
