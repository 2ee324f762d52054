"""TSEngine against a star as the number of workers grows: the shape of its published re-measurement."""

from __future__ import annotations

import random
from statistics import fmean

from agents.sync.spec import allreduce
from testbed.simulation.world import World
from topologies.load import topology_from_dict

ELEMENTS = 1_000_000
ROUNDS = 4


def seconds(workers: int, scheduler: str) -> float:
    """Workers and a server on one hub, links of 640 to 1920 Mbit/s; the model is a single chunk."""
    rng = random.Random(workers)
    names = [f"s{k}" for k in range(workers + 2)]
    links = [{"endpoints": ["s1", s], "rate": f"{rng.randint(640, 1920)}mbit"} for s in names if s != "s1"]
    world = World(topology_from_dict({"name": "hub", "sites": {s: {} for s in names}, "links": links}))
    world.use(scheduler, ELEMENTS)
    times = []
    for _ in range(ROUNDS):
        for site in range(world.n):
            seq = world.begin(site, allreduce(ELEMENTS))
        times.append(world.run_until_complete(seq).synchronisation_s)
    return fmean(times)


def test_the_star_falls_behind_the_more_the_more_workers_there_are() -> None:
    counts = (10, 30, 100)
    star = [seconds(n, "star-first") for n in counts]
    tsengine = [seconds(n, "tsengine") for n in counts]
    # A star's server sends and receives once a worker; TSEngine doubles the holders and pairs the sums.
    assert star[2] / star[0] > 7
    assert tsengine[2] / tsengine[0] < 5
    ratios = [slow / fast for slow, fast in zip(star, tsengine, strict=True)]
    assert ratios[2] > 2 * ratios[0] > 2
    assert ratios[0] < ratios[1] < ratios[2]
