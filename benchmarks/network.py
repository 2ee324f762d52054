"""Measures the emulated WAN, and plain Mininet in the same run, and writes the tables of docs/bench.md.

    python benchmarks/network.py [--only carried|busy|rtt|hitless] [--print]

Needs root. A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; everything else in the file is left
alone. Each states the machine's load at its beginning: numbers of a busy machine are those of a busy machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plain_mininet import CHANGES, HIGH_MBIT, HITLESS_S, LOW_MBIT
from tables import measured, table
from traffic import PROGRAM, answer, start

from testbed.client import SupervisorClient
from testbed.emulation import launch
from testbed.emulation.rundir import TestbedInfo
from testbed.emulation.sites import enter_argv
from testbed.emulation.traffic import FRAME_BYTES
from topologies.dscp import encode
from topologies.load import load_topology, topology_from_dict
from topologies.model import Topology
from topologies.paths import direct_path_number, path_sets

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "bench.md"
BAND = (0.90, 0.97)
SECONDS = 3.0
PINGS = 500
BUSY_SCALE = 0.1
BUSY_S = 10.0


@contextmanager
def testbed(topology: Topology, *, calibrate: bool = False) -> Iterator[TestbedInfo]:
    info = launch.up(topology, f"bench-{os.getpid()}", calibrate=calibrate)
    try:
        yield info
    finally:
        launch.down(info.name)


def with_delay(topology: Topology, delay: str) -> Topology:
    plain = topology.to_dict()
    links = [{**link, "delay": delay} for link in plain["links"]]
    return topology_from_dict({**plain, "links": links})


def traffic(info: TestbedInfo, request: dict[str, Any]) -> subprocess.Popen[str]:
    """The program that calibration uses too, inside the testbed."""
    found = SupervisorClient(info.name).call("sites")
    sites = [{"pid": found[name]["pid"], "ip": site.wan_ip} for name, site in info.sites.items()]
    return start(enter_argv(info.name, None, PROGRAM), sites, request)


@functools.cache
def plain() -> dict[str, Any]:
    """What plain Mininet does with NetStorm-9, in namespaces of its own."""
    with tempfile.TemporaryDirectory(prefix="stormbed-bench-") as name:
        folder = Path(name)
        topology = json.dumps(load_topology("netstorm-9").to_dict())
        folder.joinpath("topology.json").write_text(topology, encoding="utf-8")
        argv = [
            *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--"),
            *("tini", "--", sys.executable, str(HERE / "plain_mininet.py")),
            *(name, str(folder / "topology.json"), str(SECONDS)),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise SystemExit(f"plain Mininet failed:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def carried() -> str:
    network = load_topology("netstorm-9")
    declared = [link.rate.bps for link in network.directed]
    rows = []
    totals = []
    for words, topology in (
        ("Stormbed, 10 ms one way", with_delay(network, "10ms")),
        ("Stormbed, 0 ms", network),
    ):
        with testbed(topology, calibrate=True) as info:
            assert info.fidelity is not None
            found = [float(link["together_bps"]) for link in info.fidelity["links"]]
            rows.append([*carried_row(words, found, declared), info.fidelity["verdict"]])
            totals.append(sum(found))
    found = [float(flow["bps"]) for flow in plain()["load"]["flows"]]
    rows.append([*carried_row("plain Mininet, 0 ms", found, declared), "-"])
    ratios = " and ".join(f"{total / sum(found):.1f}" for total in totals)
    return (
        f"{sum(declared) / 1e6:.0f} Mbit/s declared, TCP on all {len(declared)} directions at once. "
        f"Stormbed carries {ratios} times what plain Mininet does.\n\n"
        + table(
            ("", "carried Mbit/s", f"directions within {BAND[0]}-{BAND[1]}", "least", "most", "verdict"), rows
        )
    )


def carried_row(words: str, found: Sequence[float], declared: Sequence[int]) -> list[str]:
    ratios = [bps / rate for bps, rate in zip(found, declared, strict=True)]
    within = sum(BAND[0] <= ratio <= BAND[1] for ratio in ratios)
    return [
        words,
        f"{sum(found) / 1e6:.0f}",
        f"{within} of {len(ratios)}",
        f"{min(ratios):.2f}",
        f"{max(ratios):.2f}",
    ]


def busy() -> str:
    """NetStorm-9 at a tenth of its rates: what every link carries, and its round trip, while all are busy."""
    network = with_delay(load_topology("netstorm-9"), "10ms").scaled(BUSY_SCALE)
    paths = path_sets(network)
    tos = {}
    for link in network.directed:
        number = direct_path_number(paths, link.src, link.dst)
        assert number is not None  # the direct path of neighbours is always in their set
        tos[link.src, link.dst] = encode(number, 0)
    flows = [
        {
            "src": link.src,
            "dst": link.dst,
            "rate_bps": link.rate.bps,
            "tos": tos[link.src, link.dst],
            "back_tos": tos[link.dst, link.src],
        }
        for link in network.directed
    ]
    # The calibration takes the switches' own time out of the delays; its own load is over before ours.
    with testbed(network, calibrate=True) as info:
        request = {"kind": "load", "flows": flows, "warm_s": 3.0, "seconds_s": BUSY_S, "probe_gap_s": 0.1}
        found = answer(traffic(info, request), 60)["flows"]
        assert info.fidelity is not None
        verdict = info.fidelity["verdict"]
    declared = [link.rate.bps for link in network.directed]
    row = carried_row("Stormbed, 10 ms one way", [float(flow["bps"]) for flow in found], declared)
    there = [statistics.mean(flow["delays_s"]) for flow in found]
    trips = [1e3 * (out + back) for out, back in zip(there[::2], there[1::2], strict=True)]
    sent = sum(flow["sent"] for flow in found)
    arrived = sum(len(flow["delays_s"]) for flow in found)
    return (
        f"{sum(declared) / 1e6:.1f} Mbit/s declared, TCP on all {len(declared)} directions at once for "
        f"{BUSY_S:g} s. The round trip of a link is the mean one-way delay of small datagrams in the same "
        f"queues, there plus back; {arrived:,} of {sent:,} arrived.\n\n"
        + table(
            (
                *("", "carried Mbit/s", f"directions within {BAND[0]}-{BAND[1]}", "least", "most", "verdict"),
                *("mean RTT ms", "least RTT ms", "most RTT ms"),
            ),
            [
                [
                    *row,
                    verdict,
                    *(f"{value:.0f}" for value in (statistics.mean(trips), min(trips), max(trips))),
                ]
            ],
        )
    )


def rtt() -> str:
    pair = topology_from_dict(
        {
            "name": "pair",
            "sites": {"a": {}, "b": {}},
            "links": [{"endpoints": ["a", "b"], "rate": "100mbit", "delay": "10ms"}],
        }
    )
    # Calibration takes the switches' own time out of the delay.
    with testbed(pair, calibrate=True) as info:
        argv = ["ping", "-n", "-i", "0.01", "-c", str(PINGS), info.sites["b"].wan_ip]
        done = subprocess.run(
            enter_argv(info.name, "a", argv), capture_output=True, text=True, timeout=60, check=True
        )
    times = sorted(
        float(line.partition("time=")[2].split()[0]) for line in done.stdout.splitlines() if "time=" in line
    )
    row = [f"{times[int(share * (len(times) - 1))] - 20:+.2f}" for share in (0.5, 0.95, 0.99, 1.0)]
    return (
        f"{len(times)} of {PINGS} pings over 10 ms one way; the error of the round trip of 20 ms.\n\n"
        + table(("median ms", "p95 ms", "p99 ms", "most ms"), [row])
    )


def hitless() -> str:
    pair = topology_from_dict(
        {
            "name": "pair",
            "sites": {"a": {}, "b": {}},
            "links": [{"endpoints": ["a", "b"], "rate": f"{LOW_MBIT}mbit"}],
        }
    )
    rows = []
    with testbed(pair) as info:
        paced = {"src": 0, "dst": 1, "tos": 0, "back_tos": 0, "send_bps": int(0.8 * LOW_MBIT * 1e6)}
        request = {"kind": "flood", "flows": [paced], "seconds_s": HITLESS_S, "wait_s": 1.0}
        process = traffic(info, request)
        pause, client = threading.Event(), SupervisorClient(info.name)
        pause.wait(0.4)
        for number in range(CHANGES):
            pause.wait(0.45)
            client.call("link_set", src="a", dst="b", rate=f"{(HIGH_MBIT, LOW_MBIT)[number % 2]}mbit")
        rows.append(hitless_row("Stormbed", answer(process, 60)))
    rows.append(hitless_row("plain Mininet", plain()["hitless"]))
    return (
        f"Datagrams at 0.8 of {LOW_MBIT} Mbit/s, {CHANGES} changes between {LOW_MBIT} and {HIGH_MBIT}.\n\n"
        + table(("", "sent", "lost"), rows)
    )


def hitless_row(words: str, found: dict[str, Any]) -> list[str]:
    (flow,) = found["flows"]
    # The meter counts from the first arrival on, which it does not count itself.
    arrived = flow["bytes"] // FRAME_BYTES + 1
    return [words, f"{flow['sent']:,}", f"{flow['sent'] - arrived:,}"]


TABLES: dict[str, Callable[[], str]] = {
    "carried": carried,
    "busy": busy,
    "hitless": hitless,
    "rtt": rtt,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=TABLES, action="append", help="one table; may be given again")
    parser.add_argument("--print", action="store_true", help="do not change the document")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("benchmarks/network.py needs root: it makes namespaces")
    for name in given.only or TABLES:
        measured(None if given.print else DOCUMENT, name, TABLES[name])


if __name__ == "__main__":
    main()
