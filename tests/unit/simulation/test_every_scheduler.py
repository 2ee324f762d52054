"""Every scheduler in the simulated world: every site counted once, 2 to 9 sites, odd chunks."""

from __future__ import annotations

import random

import pytest

from agents.planning.registry import SchedulerSpec, scheduler_names
from agents.sync.spec import allreduce, barrier
from testbed.simulation.world import REALISTIC, SECOND, World

from .conftest import Build

VARIANTS: tuple[SchedulerSpec, ...] = (
    {"name": "packing", "options": {"run_ahead": 0, "latency": False, "link_order": "fifo"}},
    {"name": "packing", "options": {"message_s": 0.0001}},
    {"name": "netstorm", "options": {"link_order": "slack", "pull": "reversed"}},
    {"name": "mlnet", "options": {"k": 3, "roots": "all"}},
    {"name": "ring", "options": {"order": "optimal"}},
    {"name": "greedw", "options": {"method": "literal"}},
    {"name": "tsengine", "options": {"compat": "release-1.0", "max_greed": 1}},
)


@pytest.mark.parametrize("spec", [*scheduler_names(), *VARIANTS], ids=str)
def test_exact_sums(spec: SchedulerSpec, topology_of: Build) -> None:
    """`World` checks each delivered result; here also that everything arrives, and in several rounds."""
    for n in range(2, 10):
        rng = random.Random(n)
        pairs = {(rng.randrange(v), v) for v in range(1, n)}
        pairs |= {(min(p), max(p)) for p in (rng.sample(range(n), 2) for _ in range(n))}
        rates = {arc: rng.randint(20, 155) for u, v in sorted(pairs) for arc in ((u, v), (v, u))}
        world = World(topology_of(rates, delay="5ms"), options=REALISTIC)
        world.use(spec, 4_999)
        late = rng.randrange(n)
        for collective in (allreduce(31_337), allreduce(3), barrier(), allreduce(10_001, "float64")):
            seq = -1
            for site in range(n):
                if site != late:
                    seq = world.begin(site, collective)
            world.clock.at(
                world.clock.now_ns + SECOND,
                lambda late=late, it=collective, world=world: world.begin(late, it),
            )
            record = world.run_until_complete(seq)
            elements = sum(part.elements for part in collective.parts)
            assert record.delivered == [elements] * n
            assert min(record.done_ns) >= max(record.ready_ns)
