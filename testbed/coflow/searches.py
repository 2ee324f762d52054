"""Hyper-parameter searches drawn by a seed, simulated: many tuners on one switch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from agents.coflow.base import Allocation, CoflowError, largest
from agents.coflow.fabric import Fabric
from agents.coflow.fifo import FifoLm
from agents.coflow.registry import OrderingSpec, get_ordering
from agents.search.base import TrialRun, Tuner
from agents.search.registry import make_tuner
from agents.search.space import Space
from testbed.coflow.demand import Demand
from testbed.coflow.jobs import PATTERNS, Pattern, synchronisation
from testbed.coflow.result import percentile
from testbed.coflow.search_workload import JobTime, Search, SearchWorkload, StageTime, Training
from testbed.coflow.simulator import Simulation

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class SearchSpec:
    """What the searches are; all that is random comes from a seed.

    tuners         searches at once
    tuner          of `agents.search`, with its options; resume: false trains every rung from scratch, so that each
                   has eta times the iterations of the one before
    sizes_mb       of models (10^6 bytes), drawn for each trial
    one_model      drawn for each tuner instead: all its trials train the same model
    compute_ratio  seconds of computing per second that a synchronisation takes alone
    pattern        ring or ps (a server on a host of its own); see `testbed.coflow.jobs`
    rate           of every host's port, bytes/s
    """

    tuners: int = 6
    hosts: int = 8
    workers: int = 4
    tuner: str = "halving"
    options: Mapping[str, Any] = field(default_factory=lambda: {"resume": False})
    sizes_mb: tuple[float, ...] = (10, 20, 40, 80, 160)
    compute_ratio: float = 0.2
    pattern: Pattern = "ring"
    rate: float = 125e6
    one_model: bool = False

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise CoflowError(f"a pattern {self.pattern!r}", hint=" or ".join(PATTERNS))
        if self.tuners < 1 or self.workers < 2:
            raise CoflowError(f"{self.tuners} tuners of {self.workers} workers", hint="at least 1, and 2 workers")
        if self.workers + (self.pattern == "ps") > self.hosts:
            raise CoflowError(f"{self.workers} workers do not fit on {self.hosts} hosts")
        if not self.sizes_mb or min(self.sizes_mb) <= 0 or self.compute_ratio < 0:
            raise CoflowError("models need bytes, and computing cannot take less than no time")
        self.make_tuner()

    def make_tuner(self) -> Tuner:
        return make_tuner(self.tuner, Space.parse({}), self.options)


def make_workload(spec: SearchSpec, seed: int) -> SearchWorkload:
    """The searches of a seed. A trial's model, hosts and score depend on the seed, its tuner and its number alone."""
    fabric = Fabric.switch(spec.hosts, spec.rate)
    return SearchWorkload(fabric, [_search(spec, fabric, seed, tuner) for tuner in range(spec.tuners)])


def _search(spec: SearchSpec, fabric: Fabric, seed: int, tuner: int) -> Search:
    common = random.Random(f"{seed}:{tuner}").choice(spec.sizes_mb)

    @cache
    def training(trial: int) -> Training:
        rng = random.Random(f"{seed}:{tuner}:{trial}")
        size = (common if spec.one_model else rng.choice(spec.sizes_mb)) * MEGABYTE
        server, *workers = rng.sample(range(spec.hosts), spec.workers + 1)
        if spec.pattern == "ring":
            workers = [server, *workers[1:]]
        demand = Demand.of(synchronisation(spec.pattern, workers, size, server))
        return Training(demand, spec.compute_ratio * largest(demand.loads(fabric)))

    def score(run: TrialRun) -> float:
        return random.Random(f"{seed}:{tuner}:{run.trial}:score").random()

    return Search(spec.make_tuner(), lambda run: training(run.trial), score)


@dataclass(frozen=True)
class SearchResult:
    """What became of the searches under one policy. Seconds.

    mean_wait_s        of a coflow: the time in which nothing of it was sent
    busiest_link_ratio of the makespan in which the link that carries most was busy; mean_link_ratio: all links
    bound_ratio        sum of stage completion times over what each stage needs on an empty network: no schedule
                       reaches less than 1, and none need reach 1
    """

    policy: str
    mean_sct_s: float
    p95_sct_s: float
    mean_jct_s: float
    mean_cct_s: float
    mean_wait_s: float
    makespan_s: float
    busiest_link_ratio: float
    mean_link_ratio: float
    bound_ratio: float
    stages: tuple[StageTime, ...]
    jobs: tuple[JobTime, ...]


def run_searches(
    spec: SearchSpec, seed: int, policy: OrderingSpec, allocation: Allocation | None = None
) -> SearchResult:
    """Run the searches of a seed under a policy. FIFO-LM's threshold is by the sizes of the first stages' jobs."""
    return run_workload(make_workload(spec, seed), policy, allocation)


def run_workload(
    workload: SearchWorkload, policy: OrderingSpec, allocation: Allocation | None = None
) -> SearchResult:
    """Run searches under a policy."""
    ordering = get_ordering(policy)
    if isinstance(ordering, FifoLm):
        ordering = ordering.with_sizes(
            [training.demand.bytes for stage in workload.first_jobs() for _, training in stage]
        )
    simulation = Simulation(workload.fabric, ordering, workload, allocation)
    simulation.run()
    stages, jobs, coflows = workload.stage_times, workload.job_times, simulation.done.values()
    times = np.array([stage.sct for stage in stages])
    utilisation = simulation.utilisation()
    return SearchResult(
        ordering.name,
        float(times.mean()),
        percentile(times, 95),
        float(np.mean([job.jct for job in jobs])),
        float(np.mean([coflow.cct for coflow in coflows])),
        float(np.mean([coflow.waited for coflow in coflows])),
        simulation.now,
        max(utilisation.values()),
        sum(utilisation.values()) / len(workload.fabric.capacity),
        float(times.sum() / sum(stage.alone for stage in stages)),
        tuple(stages),
        tuple(jobs),
    )
