"""TSEngine against a star as the number of workers grows, in the simulated world.

    python benchmarks/tsengine.py              # 10 to 50 workers
    python benchmarks/tsengine.py 10 30 100

The set-up of the published re-measurement of TSEngine: workers on one hub, every access link drawn uniformly
from 640..1920 Mbit/s, one tensor of 240 MB as a single chunk, push and pull, no training. There star over
TSEngine was 1.62 for 10 workers, 3.02 for 30, 4.87 for 50 and 5.64 for 100 (rounds of unchanging links). The
hub is a site here and holds a contribution of its own; the server is another site on it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

from agents.sync.spec import allreduce
from testbed.simulation.world import World
from topologies.load import topology_from_dict
from topologies.model import Topology

ELEMENTS = 60_000_000


def hub(workers: int, seed: int) -> Topology:
    """Site s0 is the server, s1 the hub, the others are workers."""
    rng = random.Random(seed)
    names = [f"s{k}" for k in range(workers + 2)]
    links = [
        {"endpoints": ["s1", name], "rate": f"{rng.randint(640, 1920)}mbit"} for name in names if name != "s1"
    ]
    return topology_from_dict(
        {"name": "hub", "sites": {name: {"workers": 1} for name in names}, "links": links}
    )


def seconds(topology: Topology, scheduler: str, rounds: int) -> float:
    """Mean over rounds, the first of which knows nothing of the links."""
    world = World(topology)
    world.use(scheduler, ELEMENTS)
    times = []
    for _ in range(rounds):
        seq = -1
        for site in range(world.n):
            seq = world.begin(site, allreduce(ELEMENTS))
        times.append(world.run_until_complete(seq).synchronisation_s)
    return statistics.fmean(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workers", nargs="*", type=int, default=[10, 20, 30, 50])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--draws", type=int, default=8, help="of the links' rates")
    arguments = parser.parse_args()
    sys.stdout.write("workers   star s   tsengine s   ratio\n")
    for workers in arguments.workers:
        drawn = [hub(workers, seed) for seed in range(arguments.draws)]
        # A star knows nothing, so one of its rounds is as good as ten.
        star = statistics.fmean(seconds(topology, "star-first", 1) for topology in drawn)
        tsengine = statistics.fmean(seconds(topology, "tsengine", arguments.rounds) for topology in drawn)
        sys.stdout.write(f"{workers:7} {star:8.1f} {tsengine:12.1f} {star / tsengine:7.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
