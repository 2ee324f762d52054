"""Five sites of which one link fails and returns, for both worlds' tests, and what the simulated one makes of it."""

from __future__ import annotations

from typing import Any

from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from testbed.simulation.clock import SECOND
from testbed.simulation.world import REALISTIC, World
from topologies.load import topology_from_dict

FIVE = {
    "name": "five",
    "defaults": {"rate": "200mbit"},
    "sites": {f"dc{k}": {} for k in range(1, 6)},
    "links": [
        {"endpoints": ["dc1", "dc2"]},
        {"endpoints": ["dc2", "dc3"], "rate": "50mbit"},
        {"endpoints": ["dc3", "dc4"]},
        {"endpoints": ["dc4", "dc5"], "delay": "2ms"},
        {"endpoints": ["dc5", "dc1"]},
        {"endpoints": ["dc1", "dc3"]},
        {"endpoints": ["dc2", "dc4"], "backward": {"rate": "20mbit"}},
    ],
}
CUT = ("dc1", "dc2")


def simulated_plans(
    awareness: Any = "off", scheduler: str = "netstorm", elements: int = 600_000, chunk_elements: int = 50_000
) -> list[tuple[str, dict[str, Any]]]:
    """(why, plan) of every policy while FIVE's link CUT is down from 1 s to 3 s and all-reduces follow each other."""
    topology = topology_from_dict(FIVE)
    names = topology.site_names
    world = World(topology, options=REALISTIC, whole=True)
    found: list[tuple[str, dict[str, Any]]] = []

    def use_plan(plan: Any, why: dict[str, Any]) -> None:
        found.append((why["reason"], plan.to_dict(names)))
        world.use_plan(plan, chunk_elements, why)

    measuring = world.measure()
    measuring.begin(
        AwarenessOptions.model_validate(awareness),
        AuxiliaryOptions(),
        get_scheduler(scheduler, names).plan,
        use_plan,
    )
    ends = {topology.index(name) for name in CUT}
    cable = [link.index for link in topology.directed if {link.src, link.dst} == ends]
    for second, down in ((1, True), (3, False)):
        world.clock.at(second * SECOND, lambda down=down: world.cut(dict.fromkeys(cable, down), {}))  # type: ignore[misc]
    while world.clock.now_ns < 4 * SECOND:
        seq = -1
        for site in range(world.n):
            seq = world.begin(site, allreduce(elements))
        assert world.run_until_complete(seq).delivered == [elements] * world.n
    measuring.end()
    return found


def hops_of_plan(plan: dict[str, Any]) -> set[tuple[str, str]]:
    """(from, to) of every hop that a plan's sums and results take."""
    up = {(v, p) for tree in plan["roots"] for v, p in tree["parents"].items() if p is not None}
    down = {
        (p, v)
        for tree in plan["roots"]
        for v, p in tree.get("pull_parents", tree["parents"]).items()
        if p is not None
    }
    return up | down
