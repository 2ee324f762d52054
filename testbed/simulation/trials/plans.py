"""Who gives a trial's coordinator new plans, and when.

`random`    new random trees at every release, sometimes two of which only the last may count
`within`    besides, new plans for what is left of a collective that runs, at random times
`measured`  the coordinator's own `Replanner`, fed with the sites' reports of random rates, which are lost,
            doubled and overtaken; at every release it looks at its rates
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

from agents.declared_network import DeclaredNetwork
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.planning.base import NetworkView, Plan
from agents.planning.registry import get_scheduler
from agents.planning.timing import timing_of
from agents.replanning import Replanner
from agents.sync.actions import CoordinatorAction
from agents.views import network_view
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.trials.carriage import MS, Carriage
from testbed.simulation.trials.promises import Job
from testbed.simulation.trials.random_protocol import random_plan
from topologies.load import topology_from_dict

Planner = Literal["random", "within", "measured"]
PLANNERS: tuple[Planner, ...] = ("random", "within", "measured")
Execute = Callable[[Job, list[CoordinatorAction]], None]
MOST_REPORTS = 40
NETWORKS = 12


class RandomPlans:
    """See the module's text. `within`: also inside collectives."""

    def __init__(
        self, rng: random.Random, clock: VirtualClock, job: Job, execute: Execute, *, within: bool = False
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._job = job
        self._execute = execute
        self._within = within

    def begin(self) -> None:
        """The job begins."""
        self._clock.after(self._rng.randrange(20 * MS), self._next)

    def released(self) -> None:
        """A collective was released."""
        for _ in range(self._rng.choice((1, 1, 2))):
            self._next()
        if self._within:
            for _ in range(self._rng.randrange(3)):
                self._clock.after(self._rng.randrange(60 * MS), self._inside)

    def _next(self) -> None:
        if not self._job.coordinator_dead:
            plan, size, paths = self._draw()
            self._execute(self._job, self._job.coordinator.set_plan(plan, size, paths))

    def _inside(self) -> None:
        coordinator = self._job.coordinator
        if not self._job.coordinator_dead and coordinator.next_seq:
            plan, size, paths = self._draw()
            seq = max(0, coordinator.next_seq - self._rng.randint(1, 2))
            self._execute(self._job, coordinator.replan_within(seq, plan, size, paths))

    def _draw(self) -> tuple[Plan, int, dict[tuple[int, int], int]]:
        rng, n = self._rng, self._job.n
        paths = {(u, v): rng.randrange(3) for u in range(n) for v in range(n) if u != v}
        plan = random_plan(rng, n)
        if self._within:
            # Contributions that wait for results leave something to change inside a collective.
            view = view_of(n, rng.randrange(NETWORKS))
            plan = replace(
                plan,
                link_order=rng.choice(("fifo", "index", "slack")),
                cut=rng.choice(("quota", "smooth")),
                run_ahead=rng.choice((None, 0.0, 0.5)),
                timing=timing_of(plan.trees, view),
            )
        return plan, rng.randint(1, 40), paths


class MeasuredPlans:
    """See the module's text."""

    def __init__(
        self, rng: random.Random, clock: VirtualClock, job: Job, execute: Execute, carriage: Carriage
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._job = job
        self._execute = execute
        self._carriage = carriage
        network = network_of(job.n, rng.randrange(NETWORKS))
        members = tuple(range(job.n))
        self._network = network
        self._planner = get_scheduler(rng.choice(("netstorm", "mlnet", "star-best")), job.names)
        self._replanner = Replanner(
            AwarenessOptions(
                estimator=rng.choice(("published", "unbiased")), replan=rng.choice(("change", "gain"))
            ),
            AuxiliaryOptions(),
            network=network,
            members=members,
            declared={link: float(bps) for link, bps in network.topology.rates().items()},
            view=lambda rates: network_view(network, rates, members),
        )
        self._chunk_elements = rng.randint(1, 40)
        self._hop_paths = network.hop_paths(members)

    @property
    def _now(self) -> float:
        return self._clock.now_ns / SECOND

    def begin(self) -> None:
        """The job begins."""
        look = self._replanner.begin(self._now)
        self._replanner.plan = self._planner.plan(look.view)
        self._clock.after(self._rng.randrange(20 * MS), lambda: self._use(self._replanner.plan))
        for site in range(self._job.n):
            self._report_soon(site, MOST_REPORTS)

    def released(self) -> None:
        """A collective was released."""
        look = self._replanner.look(self._now)
        if look is not None and not self._job.coordinator_dead:
            _, plan = self._replanner.judge(look, self._planner.plan(look.view))
            self._use(plan)

    def _use(self, plan: Plan | None) -> None:
        if plan is not None and not self._job.coordinator_dead:
            job = self._job
            self._execute(job, job.coordinator.set_plan(plan, self._chunk_elements, self._hop_paths))

    def _report_soon(self, site: int, left: int) -> None:
        if left and not self._job.over:
            self._clock.after(self._rng.randrange(30 * MS), lambda: self._report(site, left))

    def _report(self, site: int, left: int) -> None:
        rng = self._rng
        peers = [peer for peer in range(self._job.n) if peer != site]
        ways = [
            [peer, rng.randrange(len(self._network.paths[peer, site])), rng.uniform(1e6, 200e6)]
            for peer in rng.sample(peers, rng.randint(1, len(peers)))
        ]
        if site not in self._job.dead:
            self._carriage.datagram(lambda: self._replanner.reported(site, ways, self._now))
        self._report_soon(site, left - 1)


@cache
def network_of(n: int, number: int) -> DeclaredNetwork:
    """One of `NETWORKS` connected random networks of n sites."""
    rng = random.Random(f"network of trials {n} {number}")
    pairs = {(rng.randrange(v), v) for v in range(1, n)}
    for _ in range(rng.randrange(n + 1)):
        u, v = rng.randrange(n), rng.randrange(n)
        if u != v:
            pairs.add((min(u, v), max(u, v)))
    links = [
        {
            "endpoints": [f"dc{u + 1}", f"dc{v + 1}"],
            "forward": {"rate": f"{rng.choice((20, 50, 100))}mbit"},
            "backward": {"rate": f"{rng.choice((20, 50, 100))}mbit"},
        }
        for u, v in sorted(pairs)
    ]
    sites: dict[str, dict[str, int]] = {f"dc{k + 1}": {} for k in range(n)}
    network = DeclaredNetwork(topology_from_dict({"name": f"trial-{n}-{number}", "sites": sites, "links": links}))
    assert network.paths
    return network


@cache
def view_of(n: int, number: int) -> NetworkView:
    """What a scheduler sees of `network_of`."""
    network = network_of(n, number)
    return network_view(network, network.topology.rates(), tuple(range(n)))
