"""Measures the simulated world and writes the tables of docs/simulation.md.

    python benchmarks/simulation.py [--only draws|scale|planning|trials] [--print]

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; everything else in the file is left alone.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import networkx as nx
from tables import write_table

from agents.planning.base import NetworkView
from agents.planning.registry import get_scheduler, scheduler_names
from testbed.simulation.bounds import bound
from testbed.simulation.comparison import ALEXNET, BYTES_PER_ELEMENT
from testbed.simulation.synchronise import synchronise
from testbed.simulation.trials import FAULTS, MODES, run_trial
from testbed.simulation.world import WorldOptions
from topologies.load import topology_from_dict
from topologies.model import Topology

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "simulation.md"
LINKS = (
    (0, 1),
    (0, 2),
    (1, 2),
    (1, 4),
    (2, 3),
    (3, 4),
    (3, 5),
    (4, 6),
    (5, 6),
    (5, 7),
    (5, 8),
    (6, 7),
    (7, 8),
)
SLOWEST_MBPS, FASTEST_MBPS = 20, 155
# An earlier model of ours: mean seconds over six draws, chunks of 1,000,000 and 100,000 elements.
PUBLISHED = {
    "netstorm": "37.0 / 35.3",
    "packing": "31.0 / 29.7",
    "star-first": "338",
    "star-best": "141",
    "star-all": "178",
}


def symmetric_draw(rng: random.Random) -> Topology:
    """NetStorm's graph with one rate per link, uniform in the published range."""
    return build([(u, v, rate, rate) for u, v in LINKS for rate in [rng.randint(SLOWEST_MBPS, FASTEST_MBPS)]])


def build(links: Sequence[tuple[int, int, int, int]], delay: str = "0ms") -> Topology:
    n = 1 + max(max(u, v) for u, v, _, _ in links)
    return topology_from_dict(
        {
            "name": "drawn",
            "sites": {f"dc{k + 1}": {} for k in range(n)},
            "links": [
                {
                    "endpoints": [f"dc{u + 1}", f"dc{v + 1}"],
                    "delay": delay,
                    "forward": {"rate": f"{there}mbit"},
                    "backward": {"rate": f"{back}mbit"},
                }
                for u, v, there, back in links
            ],
        }
    )


def regular(n: int, degree: int, seed: int) -> Topology:
    """A random regular graph with a rate of its own for each direction and 10 ms a link."""
    rng = random.Random(seed)
    graph = nx.random_regular_graph(degree, n, seed=seed)
    edges = sorted((min(edge), max(edge)) for edge in graph.edges)
    rates = [
        (rng.randint(SLOWEST_MBPS, FASTEST_MBPS), rng.randint(SLOWEST_MBPS, FASTEST_MBPS)) for _ in edges
    ]
    return build([(u, v, *pair) for (u, v), pair in zip(edges, rates, strict=True)], "10ms")


def draws() -> str:
    rng = random.Random(11)
    six = [symmetric_draw(rng) for _ in range(6)]
    thirty = [symmetric_draw(random.Random(k)) for k in range(30)]
    limits = [
        [bound(t, BYTES_PER_ELEMENT * ALEXNET).seconds or 0.0 for t in group] for group in (six, thirty)
    ]
    rows = [["bound", "20.8", f"{mean(limits[0]):.1f}", "", f"{mean(limits[1]):.1f}", "", "1.00"]]
    cases: list[tuple[str, str, WorldOptions]] = [
        (name, name, WorldOptions()) for name in scheduler_names()
    ] + [
        (f"{name}, queues", name, WorldOptions(relay="queue"))
        for name in ("star-first", "star-best", "star-all")
    ]
    for shown, name, options in cases:
        row = [shown, PUBLISHED.get(name, "")]
        for group, limit in zip((six, thirty), limits, strict=True):
            coarse, fine = (
                [synchronise(t, name, ALEXNET, chunk, options=options).seconds for t in group]
                for chunk in (1_000_000, 100_000)
            )
            row += [f"{mean(coarse):.1f}", f"{mean(fine):.1f}"]
            ratio = mean(s / least for s, least in zip(fine, limit, strict=True))
        rows.append([*row, f"{ratio:.2f}"])
    return table(
        (
            "scheme",
            "earlier model (s)",
            "six draws, 1 M",
            "six, 100 k",
            "30 draws, 1 M",
            "30, 100 k",
            "x bound",
        ),
        rows,
    )


def scale() -> str:
    rows = []
    nine = build([(u, v, rate, rate) for u, v in LINKS for rate in [100]])
    cases = [(nine, s, c) for c in (1_000_000, 100_000) for s in ("netstorm", "star-first", "star-all")]
    cases += [
        (regular(n, 4, 1), s, 100_000) for n in (16, 32, 64) for s in ("netstorm", "star-first", "star-all")
    ]
    for topology, scheduler, chunk in cases:
        started = time.process_time()
        result = synchronise(topology, scheduler, ALEXNET, chunk)
        cpu_s = time.process_time() - started
        rows.append(
            [
                str(len(topology.site_names)),
                scheduler,
                f"{chunk:,}",
                f"{result.messages:,}",
                f"{result.seconds:.1f}",
                f"{cpu_s:.2f}",
                f"{result.wall_s:.2f}",
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}",
            ]
        )
    return table(
        ("sites", "scheduler", "chunk", "messages", "virtual s", "CPU s", "wall s", "peak MiB"),
        rows,
    )


def planning() -> str:
    rows = []
    for n in (9, 64, 256, 1000):
        topology = regular(n, 4, 1)
        rates = {arc: float(bps) for arc, bps in topology.rates().items()}
        started = time.process_time()
        get_scheduler("netstorm", topology.site_names).plan(NetworkView(n, rates, topology.site_names))
        planned = time.process_time() - started
        row = [str(n), f"{planned:.2f}"]
        if n <= 64:
            started = time.process_time()
            limit = bound(topology)
            gap = limit.rate_bps / limit.attained_rate_bps - 1
            row += [f"{time.process_time() - started:.2f}", f"{gap:.1e}"]
        rows.append([*row, *([""] * (4 - len(row)))])
    return table(
        ("sites", "FAPT of all roots and shares (CPU s)", "bound, asymmetric (CPU s)", "its gap"), rows
    )


def trials() -> str:
    count = 10_000
    parts = []
    for mode in MODES:
        started = time.process_time()
        reports = [run_trial(seed, mode=mode) for seed in range(count)]
        seconds = time.process_time() - started
        failed = [report.seed for report in reports if report.violation is not None]
        if failed:
            sys.stdout.write(f"failed seeds ({mode}): {failed[:20]}\n")
        rows = [
            [
                fault,
                str(sum(r.fault == fault for r in reports)),
                f"{sum(r.collectives for r in reports if r.fault == fault):,}",
                f"{sum(r.policies for r in reports if r.fault == fault):,}",
                f"{sum(r.messages for r in reports if r.fault == fault):,}",
                f"{sum(r.lost for r in reports if r.fault == fault):,}",
                f"{sum(r.duplicates for r in reports if r.fault == fault):,}",
                str(sum(r.fault == fault and r.violation is not None for r in reports)),
            ]
            for fault in FAULTS
        ]
        columns = ("fault", "trials", "collectives", "policies", "messages", "lost", "duplicates dropped", "failed")
        words = f"{count:,} seeds, policies by {mode}, in {seconds:.0f} CPU seconds.\n\n"
        parts.append(words + table(columns, rows))
    return "\n".join(parts)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "draws": draws,
    "scale": scale,
    "planning": planning,
    "trials": trials,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=TABLES, help="one table")
    parser.add_argument("--print", action="store_true", help="do not change the document")
    given = parser.parse_args()
    for name in [given.only] if given.only else TABLES:
        # Each in a process of its own, so that one's memory is not counted as another's.
        if given.only is None:
            command = [sys.executable, __file__, "--only", name, *(["--print"] if given.print else [])]
            subprocess.run(command, check=True, timeout=3600)
            continue
        text = TABLES[name]()
        sys.stdout.write(f"{name}\n\n{text}\n")
        if not given.print:
            write_table(DOCUMENT, name, text)


if __name__ == "__main__":
    main()
