"""How long one synchronisation takes: the question that most comparisons of schedulers ask."""

from __future__ import annotations

import time
from dataclasses import dataclass

from agents.planning.base import Plan
from agents.planning.registry import SchedulerSpec
from agents.sync.spec import allreduce
from testbed.simulation.world import IDEAL, World, WorldOptions
from topologies.model import Topology


@dataclass(frozen=True)
class Synchronisation:
    """seconds      last result at any site minus last gradient ready at any site, in virtual time
    plan         the trees it ran on
    link_bits    bits carried by every directed link, in the topology's order
    messages     chunks sent from site to site
    wall_s       what simulating it took (planning included)
    """

    scheduler: str
    seconds: float
    plan: Plan
    link_bits: tuple[float, ...]
    messages: int
    wall_s: float


def synchronise(
    topology: Topology,
    scheduler: SchedulerSpec,
    elements: int,
    chunk_elements: int = 100_000,
    *,
    dtype: str = "float32",
    options: WorldOptions = IDEAL,
    world: World | None = None,
) -> Synchronisation:
    """One all-reduce of `elements`, all gradients ready at once, planned with the declared rates."""
    started = time.perf_counter()
    world = World(topology, options=options) if world is None else world
    plan = world.use(scheduler, chunk_elements)
    spec = allreduce(elements, dtype)
    seq = -1
    for site in range(world.n):
        seq = world.begin(site, spec)
    record = world.run_until_complete(seq)
    return Synchronisation(
        plan.scheduler,
        record.synchronisation_s,
        plan,
        tuple(world.network.carried_bits),
        world.network.messages,
        time.perf_counter() - started,
    )
