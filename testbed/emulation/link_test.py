"""From one site's host to another's through the WAN: TCP's rate, the round trip, what is lost."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

from testbed.emulation.environment import PYTHON
from testbed.emulation.routes import Route
from testbed.emulation.wan import Wan
from testbed.runner import run
from topologies.addressing import wan_ip
from topologies.dscp import encode
from topologies.errors import DeadlineError, RunFailedError, UsageError

PROBES: Final = 300
PROBE_GAP_S: Final = 0.002
WARM_S: Final = 0.5
WARM_ROUND_TRIPS: Final = 20
LONGEST_S: Final = 60.0


def measure_route(
    wan: Wan, routes: tuple[Route, Route], site_pid: Callable[[int], int], seconds: float
) -> dict[str, Any]:
    """Measure two sites' way there and back, probes first and then TCP for so many seconds.

    All packets carry the number of their direction's path, answers too. Rates are of TCP payload;
    `least_rate_bps` is of whole frames, so 0.956 of it is the most TCP can get.
    """
    if not 0.1 <= seconds <= LONGEST_S:
        raise UsageError(f"a test lasts from 0.1 to {LONGEST_S:g} s, not {seconds:g}")
    by_ends = {(link.src, link.dst): link for link in wan.links}
    there, back = ([by_ends[hop] for hop in pairwise(route.path)] for route in routes)
    round_trip_s = sum(link.delay.seconds for link in (*there, *back))
    longest_s = round_trip_s + sum(link.jitter.seconds for link in (*there, *back))
    least_bps = min(link.rate.bps for link in there)
    src, dst = routes[0].path[0], routes[0].path[-1]
    tos, back_tos = (encode(route.number, 0) for route in routes)
    sites = [{"pid": site_pid(k), "ip": wan_ip(k)} for k in (src, dst)]
    forward = {"src": 0, "dst": 1, "tos": tos, "back_tos": back_tos, "rate_bps": least_bps}
    probes = _traffic(
        sites,
        [forward, {**forward, "src": 1, "dst": 0, "tos": back_tos}],
        kind="probe",
        rounds=PROBES,
        gap_s=PROBE_GAP_S,
        wait_s=longest_s + 0.2,
    )
    warm_s = max(WARM_S, WARM_ROUND_TRIPS * longest_s)
    (carried,) = _traffic(sites, [forward], kind="load", warm_s=warm_s, seconds_s=seconds)
    delays = [probe["delays_s"] for probe in probes]
    medians = [statistics.median(found) if found else None for found in delays]
    known = [value for value in medians if value is not None]
    return {
        "path": [wan.topology.site_names[k] for k in routes[0].path],
        "back_path": [wan.topology.site_names[k] for k in routes[1].path],
        "least_rate_bps": least_bps,
        "carried_bps": carried["bps"],
        "declared_rtt_s": round_trip_s,
        "rtt_s": sum(known) if len(known) == 2 else None,
        "declared_loss_ratio": round(1 - math.prod(1 - link.loss.ratio for link in there), 9),
        "loss_ratio": 1 - len(delays[0]) / PROBES,
        "back_loss_ratio": 1 - len(delays[1]) / PROBES,
        "probes": PROBES,
        "seconds_s": seconds,
    }


def _traffic(
    sites: Sequence[dict[str, Any]], flows: Sequence[dict[str, Any]], **fields: Any
) -> list[dict[str, Any]]:
    request = {"sites": list(sites), "flows": list(flows), **fields}
    limit = 30 + PROBES * PROBE_GAP_S + sum(fields.get(key, 0) for key in ("warm_s", "seconds_s", "wait_s"))
    try:
        done = run([PYTHON, "-m", "testbed.emulation.traffic"], timeout=limit, input=json.dumps(request))
    except DeadlineError:
        raise RunFailedError(
            f"the measurement was not over after {limit:g} s", hint="the machine is busy: try again when it is idle"
        ) from None
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise RunFailedError(
            "nothing passes between these two sites: no TCP connection came about",
            hint="`testbed link show` tells which links are down or black holes",
        )
    return list(answer["flows"])
