"""Measuring the WAN before it is used: every direction at once, then alone those that fell out of band."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from testbed.emulation import counters, fidelity
from testbed.emulation.environment import PYTHON
from testbed.emulation.fidelity import Measured, Report
from testbed.emulation.impairment import quantile_s
from testbed.emulation.wan import Wan
from testbed.runner import run
from topologies.addressing import wan_ip
from topologies.dscp import encode
from topologies.errors import StormbedError
from topologies.model import DirectedLink
from topologies.paths import direct_path_number, path_sets

PROBE_ROUNDS: Final = 12
PROBE_GAP_S: Final = 0.001
"""Between two probes of any direction."""
LEAST_WARM_S: Final = 0.8
WARM_ROUND_TRIPS: Final = 25
"""How long TCP gets to fill a path before it is measured."""
WORTH_COMPENSATING_S: Final = 50e-6
LOSS_PROBES: Final = 2000
LOSS_GAP_S: Final = 0.001
"""Between two probes of one direction."""
LOSSY_RATIO: Final = 1e-5
"""From this declared loss on, TCP cannot be expected to fill a link; datagrams measure it instead."""
PAYLOAD_RATIO: Final = 1448 / 1514
FLOOD_RATIO: Final = 1.05
MOST_RETESTS: Final = 8
LITTLE_BPS: Final = 500_000_000
LEAST_LOAD_BYTES: Final = 3_000_000
LONGEST_LOAD_S: Final = 12.0

SitePid = Callable[[int], int]
Progress = Callable[[str], None]


class Calibration:
    """Measures the directions of a WAN as they are configured now.

    Args:
        wan: all links.
        site_pid: the pid of a site's shell, by its index.
        progress: gets a line for every stage.
        seconds: how long rates are measured.
    """

    def __init__(self, wan: Wan, site_pid: SitePid, progress: Progress, seconds: float) -> None:
        self._wan = wan
        self._progress = progress
        self._seconds = seconds
        self._sites = [{"pid": site_pid(k), "ip": wan_ip(k)} for k in range(len(wan.topology.sites))]
        paths = path_sets(wan.topology)
        self._tos = {}
        for link in wan.links:
            number = direct_path_number(paths, link.src, link.dst)
            assert number is not None  # the direct path of neighbours is always in their set
            self._tos[link.src, link.dst] = encode(number, 0)

    def run(self) -> Report:
        """All stages; links that are down or black holes are left out."""
        started = time.monotonic()
        links = [s.link for s in self._wan.states if not s.down and not s.blackhole]
        measured = self._probe(links)
        if self._compensate(measured):
            measured = self._probe(links)
        lossy = [i for i, link in enumerate(links) if link.loss.ratio > LOSSY_RATIO]
        sound = [i for i, link in enumerate(links) if link.loss.ratio <= LOSSY_RATIO]
        lateness = self._lateness_buckets()
        cpu = None
        if sound:
            self._progress(f"loading {len(sound)} directions at once")
            rates, cpu = self._load([links[i] for i in sound])
            for i, bps in zip(sound, rates, strict=True):
                measured[i] = replace(measured[i], together_bps=bps)
        self._retest(measured, sound)
        late = self._late_since(lateness)
        if lossy:
            self._measure_lossy(measured, lossy)
        return fidelity.judge(
            measured,
            lateness_p99_s=late,
            cpu_busy_ratio=cpu,
            switches_s=self._wan.switches_ns / 1e9,
            seconds=time.monotonic() - started,
        )

    def _probe(self, links: Sequence[DirectedLink]) -> list[Measured]:
        self._progress(f"probing {len(links)} directions")
        wait_s = _longest_delay_s(links) + 0.1
        gap_s = PROBE_GAP_S * len(links)
        # The first datagrams of a flow take the switches' slow path; they only prepare the others.
        self._traffic("probe", links, rounds=2, gap_s=gap_s, wait_s=wait_s)
        flows = self._traffic("probe", links, rounds=PROBE_ROUNDS, gap_s=gap_s, wait_s=wait_s)["flows"]
        return [
            fidelity.with_delays(Measured(link), flow["delays_s"], flow["sent"], count_loss=False)
            for link, flow in zip(links, flows, strict=True)
        ]

    def _compensate(self, measured: Sequence[Measured]) -> bool:
        """Take what the switches add to every delay out of the delay line's; tells whether it changed."""
        before = self._wan.switches_ns
        found = fidelity.common_excess_s(measured)
        if found is None or abs(found) < WORTH_COMPENSATING_S:
            return False
        self._wan.compensate(before + round(found * 1e9))
        return self._wan.switches_ns != before

    def _load(self, links: Sequence[DirectedLink]) -> tuple[list[float], float]:
        """Payload rates of these directions while all of them are busy, and how busy the machine was."""
        warm_s = max(LEAST_WARM_S, WARM_ROUND_TRIPS * 2 * _longest_delay_s(links))
        before = counters.read_cpu()
        seconds = load_seconds(links, self._seconds)
        flows = self._traffic("load", links, warm_s=warm_s, seconds_s=seconds)["flows"]
        after = counters.read_cpu()
        busy, idle = after.busy_s - before.busy_s, after.idle_s - before.idle_s
        return [flow["bps"] for flow in flows], busy / (busy + idle) if busy + idle > 0 else 0.0

    def _retest(self, measured: list[Measured], indexes: Sequence[int]) -> None:
        """Test those out of band without the others' load. When most are out, a few tell why."""
        out = [i for i in indexes if fidelity.needs_retest(measured[i])]
        out.sort(key=lambda i: measured[i].ratio(measured[i].together_bps) or 0.0)
        for i in out[MOST_RETESTS:]:
            measured[i] = replace(measured[i], retest_skipped=True)
        for group in apart([measured[i].link for i in out[:MOST_RETESTS]]):
            self._progress(f"testing alone {', '.join(f'{d.src_name} -> {d.dst_name}' for d in group)}")
            rates, _ = self._load(group)
            for link, bps in zip(group, rates, strict=True):
                i = next(i for i in out if measured[i].link is link)
                measured[i] = replace(measured[i], alone_bps=bps)

    def _measure_lossy(self, measured: list[Measured], indexes: Sequence[int]) -> None:
        links = [measured[i].link for i in indexes]
        self._progress(f"counting losses of {len(links)} directions")
        wait_s = _longest_delay_s(links) + 0.2
        flows = self._traffic("probe", links, rounds=LOSS_PROBES, gap_s=LOSS_GAP_S, wait_s=wait_s)["flows"]
        for i, flow in zip(indexes, flows, strict=True):
            delay_s = measured[i].delay_s
            counted = fidelity.with_delays(measured[i], flow["delays_s"], flow["sent"], count_loss=True)
            counted = replace(counted, bursts=flow["bursts"])
            measured[i] = replace(counted, delay_s=delay_s if delay_s is not None else counted.delay_s)
        place = dict(zip((link.index for link in links), indexes, strict=True))
        for group in apart(links):
            sending = [
                {"send_bps": int(FLOOD_RATIO * d.rate.bps / (1 - min(d.loss.ratio, 0.5)))} for d in group
            ]
            flows = self._traffic("flood", group, sending, seconds_s=self._seconds, wait_s=wait_s)["flows"]
            for link, flow in zip(group, flows, strict=True):
                i = place[link.index]
                # Frames of datagrams, told as the payload that TCP would have carried in them.
                measured[i] = replace(measured[i], alone_bps=flow["bps"] * PAYLOAD_RATIO)

    def _traffic(
        self,
        kind: str,
        links: Sequence[DirectedLink],
        extras: Sequence[Mapping[str, Any]] | None = None,
        **fields: float,
    ) -> dict[str, Any]:
        flows = [
            {
                "src": link.src,
                "dst": link.dst,
                "rate_bps": link.rate.bps,
                "tos": self._tos[link.src, link.dst],
                "back_tos": self._tos[link.dst, link.src],
                **extra,
            }
            for link, extra in zip(links, extras or [{}] * len(links), strict=True)
        ]
        request = {"kind": kind, "sites": self._sites, "flows": flows, **fields}
        limit = (
            30
            + fields.get("rounds", 0) * fields.get("gap_s", 0)
            + 2 * sum(fields.get(key, 0) for key in ("warm_s", "seconds_s", "wait_s"))
        )
        done = run([PYTHON, "-m", "testbed.emulation.traffic"], timeout=limit, input=json.dumps(request))
        answer: dict[str, Any] = json.loads(done.stdout)
        if "error" in answer:
            raise StormbedError(
                f"the network does not carry: {answer['error']}",
                hint="see controller.log and ovs/ovs-vswitchd.log",
            )
        return answer

    def _lateness_buckets(self) -> dict[str, list[int]]:
        lines = self._wan.delay_line.call("counters")
        return {index: line["lateness"] for index, line in lines.items()}

    def _late_since(self, before: Mapping[str, Sequence[int]]) -> float | None:
        """The 99th percentile of the delay line's lateness since then, over all directions it carries."""
        total: list[int] = []
        for index, buckets in self._lateness_buckets().items():
            earlier = before.get(index, [0] * len(buckets))
            gained = [now - then for now, then in zip(buckets, earlier, strict=True)]
            total = [a + b for a, b in zip(total, gained, strict=True)] if total else gained
        return quantile_s(total, 0.99) if total else None


def load_seconds(links: Sequence[DirectedLink], seconds: float) -> float:
    """How long to load these directions so that each carries enough to be judged.

    A receiver behind a lost packet gets nothing, and then up to a whole queue at once: whether that falls into
    the window or not has to matter little on the slowest link too.
    """
    slowest = min(link.rate.bps for link in links)
    return max(seconds, min(LONGEST_LOAD_S, 8 * LEAST_LOAD_BYTES / slowest))


def apart(links: Sequence[DirectedLink]) -> list[list[DirectedLink]]:
    """The same directions in groups that may be tested at once.

    No two of a group share a site, and together they are little work for the machine. A direction that is
    more than that by itself is alone in its group.
    """
    groups: list[list[DirectedLink]] = []
    for link in links:
        for group in groups:
            ends = {end for other in group for end in (other.src, other.dst)}
            total = link.rate.bps + sum(other.rate.bps for other in group)
            if not ends & {link.src, link.dst} and total <= LITTLE_BPS:
                group.append(link)
                break
        else:
            groups.append([link])
    return groups


def _longest_delay_s(links: Sequence[DirectedLink]) -> float:
    return max(link.delay.seconds + link.jitter.seconds for link in links)
