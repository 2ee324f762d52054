"""One synchronisation link by link: how much of each link is used over its time, measured beside simulated.

    python benchmarks/links_over_time.py                      # as root, 1 minute; netstorm-9 at a quarter
    python benchmarks/links_over_time.py --elements 4000000 --chunk 100000 --scheduler netstorm

Brings NetStorm-9 up, runs two synchronisations and reads the links' counters five times a second during the second;
then simulates the same and counts the same way. Each line is a directed link that the plan fills (at least 95 % of
its rate at the plan's own rate): per cent of the rate used in each tenth of the synchronisation, then the mean.
Wire bytes count, headers included, so 100 is a link that is never idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agents.planning.base import NetworkView
from agents.planning.registry import get_scheduler
from agents.planning.timing import arc_loads, timing_of
from agents.sync.spec import allreduce
from testbed.client import SupervisorClient
from testbed.emulation import launch
from testbed.experiments.run import run_experiment
from testbed.experiments.spec import LoadedExperiment, experiment_from_text
from testbed.report.measurements import read_run
from testbed.simulation.bounds import bound
from testbed.simulation.world import REALISTIC, SECOND, World
from topologies.errors import StormbedError
from topologies.model import Topology

PERIOD_S = 0.2
TENTHS = 10
NAME = "links-over-time"
FULL = 0.95
# Of 1514 bytes of a full frame, as links are shaped, 1448 are payload.
PAYLOAD = 1448 / 1514

Samples = list[tuple[float, list[float]]]
"""(seconds, bits carried so far by each directed link)."""


class Counting(threading.Thread):
    """Reads all links' counters until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: Samples = []
        self.ended = threading.Event()

    def run(self) -> None:
        client = SupervisorClient(NAME)
        while not self.ended.wait(PERIOD_S):
            try:
                sample = client.call("sample")
            except StormbedError:
                return
            carried = [8.0 * link["bytes"] for link in sample["links"]]
            self.samples.append((sample["monotonic_ns"] / 1e9, carried))


def measured(experiment: LoadedExperiment) -> tuple[Samples, float, float]:
    """Samples, begin and end of the last synchronisation."""
    launch.up(experiment.topology, NAME, calibrate=False)
    counting = Counting()
    try:
        counting.start()
        with tempfile.TemporaryDirectory() as folder:
            run = run_experiment(experiment, out=Path(folder), testbed=NAME)
            (iterations,) = read_run(run).iterations.values()
        time.sleep(2 * PERIOD_S)  # one more sample after the end
    finally:
        counting.ended.set()
        counting.join()
        launch.down(NAME)
    last = iterations[-1]
    return counting.samples, last.ready_ns / 1e9, last.done_ns / 1e9


def simulated(topology: Topology, scheduler: Any, elements: int, chunk: int) -> tuple[Samples, float, float]:
    """The same of one simulated synchronisation."""
    world = World(topology, options=REALISTIC)
    world.use(scheduler, chunk)
    samples: Samples = []

    def look() -> None:
        world.network.settle()
        wire = [bits / REALISTIC.efficiency for bits in world.network.carried_bits]
        samples.append((world.clock.now_ns / SECOND, wire))
        if world.clock.pending:
            world.clock.after(round(PERIOD_S * SECOND), look)

    for site in range(world.n):
        seq = world.begin(site, allreduce(elements))
    look()
    record = world.run_until_complete(seq)
    world.clock.run()
    return samples, max(record.ready_ns) / SECOND, max(record.done_ns) / SECOND


def tenths(samples: Samples, link: int, rate: float, begin: float, end: float) -> list[float]:
    """The share of the rate that a link carried in each tenth of the time, between samples by straight lines."""

    def carried(t: float) -> float:
        before = max((sample for sample in samples if sample[0] <= t), default=samples[0], key=lambda s: s[0])
        after = min((sample for sample in samples if sample[0] > t), default=samples[-1], key=lambda s: s[0])
        if after[0] <= before[0]:
            return before[1][link]
        share = (t - before[0]) / (after[0] - before[0])
        return before[1][link] + share * (after[1][link] - before[1][link])

    step = (end - begin) / TENTHS
    marks = [carried(begin + k * step) for k in range(TENTHS + 1)]
    return [(later - sooner) / (rate * step) for sooner, later in pairwise(marks)]


def filled(topology: Topology, scheduler: Any) -> dict[int, float]:
    """The directed links that the plan fills, by index, and how far."""
    view = NetworkView.from_topology(topology)
    plan = get_scheduler(scheduler, topology.site_names).plan(view)
    rate = timing_of(plan.trees, view).rate_bps
    use = {arc: load * rate / view.rates[arc] for arc, load in arc_loads(plan.trees, view).items()}
    index = {(link.src, link.dst): link.index for link in topology.directed}
    return {index[arc]: share for arc, share in sorted(use.items()) if share >= FULL}


def show(title: str, topology: Topology, links: Sequence[int], found: tuple[Samples, float, float]) -> None:
    samples, begin, end = found
    sys.stdout.write(f"\n{title}: {end - begin:.2f} s\n")
    total = []
    for k in links:
        link = topology.directed[k]
        shares = tenths(samples, k, link.rate.bps, begin, end)
        total += shares
        cells = " ".join(f"{share:5.0%}" for share in shares)
        name = f"{link.src_name}>{link.dst_name}"
        sys.stdout.write(f"{name:10} {link.rate.bps / 1e6:6.2f} Mbit/s  {cells}  {sum(shares) / TENTHS:6.1%}\n")
    sys.stdout.write(f"mean of these links {sum(total) / len(total):.1%}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scheduler", default="packing")
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--chunk", type=int, default=20_000)
    parser.add_argument("--scale", type=float, default=0.25)
    given = parser.parse_args()
    experiment = experiment_from_text(
        f"name: links\ntopology: netstorm-9\nscale: {given.scale}\nschedulers: [{given.scheduler}]\n"
        f"training: {{model: tensor-{given.elements}, iterations: 2, chunk_elements: {given.chunk}}}\n"
    )
    topology = experiment.topology
    links = sorted(filled(topology, given.scheduler))
    real = measured(experiment)
    show("measured", topology, links, real)
    model = simulated(topology, given.scheduler, given.elements, given.chunk)
    show("simulated", topology, links, model)
    limit = bound(topology, 4 * given.elements).seconds
    if limit is not None:
        took, ideal = real[2] - real[1], limit / PAYLOAD
        sys.stdout.write(
            f"\nbound {limit:.2f} s, with headers {ideal:.2f} s; simulated {(model[2] - model[1]) / ideal:.3f}, "
            f"measured {took / ideal:.3f} of that\n"
        )


if __name__ == "__main__":
    main()
