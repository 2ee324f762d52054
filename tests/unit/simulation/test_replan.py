"""One change of plan inside a synchronisation, planned at first with rates that are off by up to 20 %."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from testbed.simulation.bounds import bound
from testbed.simulation.world import SECOND, World

from .conftest import Build

LINKS = ((0, 1), (0, 2), (1, 2), (1, 4), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (5, 7), (5, 8), (6, 7))
ELEMENTS = 57_029_322


@pytest.mark.parametrize("draw", range(2))
def test_a_new_plan_inside_a_synchronisation_makes_good_for_wrong_rates(
    draw: int, topology_of: Build
) -> None:
    rng = random.Random(draw)
    topology = topology_of({link: rng.randint(20, 155) for link in (*LINKS, (7, 8))})
    limit = bound(topology, 4 * ELEMENTS).seconds
    assert limit is not None
    factor = {link: 1 + rng.uniform(-0.2, 0.2) for link in (*LINKS, (7, 8))}

    def seconds(replan: bool) -> float:
        world = World(topology)
        view = world.view()
        wrong = {(u, v): rate * factor[min(u, v), max(u, v)] for (u, v), rate in view.rates.items()}
        packing = get_scheduler("packing", topology.site_names)
        world.use_plan(packing.plan(replace(view, rates=wrong)), 100_000)
        if replan:
            right = packing.plan(view)
            world.clock.at(round(0.05 * limit * SECOND), lambda: world.replan_within(0, right, 100_000))
        for site in range(world.n):
            world.begin(site, allreduce(ELEMENTS))
        record = world.run_until_complete(0)
        assert record.delivered == [ELEMENTS] * world.n
        assert world.coordinator.version == (2 if replan else 1)
        return record.synchronisation_s

    static, adapted = seconds(False) / limit, seconds(True) / limit
    assert adapted < 1.08
    assert adapted < static - 0.02
