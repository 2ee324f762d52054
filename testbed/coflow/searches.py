"""Hyper-parameter searches by successive halving: stages of jobs that compute and synchronise in turns.

Every tuner runs one rung after the other; a rung is a stage and ends with its last job. A job repeats:
compute, then one coflow, until its rung's iterations are done.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agents.coflow.base import Allocation, CoflowError, Job, Loads, Stage, largest
from agents.coflow.fabric import Fabric, Flow
from agents.coflow.fifo import FifoLm
from agents.coflow.registry import STAGED, OrderingSpec, get_ordering
from testbed.coflow.demand import Demand
from testbed.coflow.simulator import Simulation

Pattern = Literal["ring", "ps"]
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class SearchSpec:
    """What the searches are; all that is random comes from a seed.

    trials         of every tuner; each rung keeps 1/eta of them
    iterations     of the first rung; eta times as many in every next one
    sizes_mb       of models (10^6 bytes), drawn for each trial
    one_model      drawn for each tuner instead: all its trials train the same model
    compute_ratio  seconds of computing per second that a synchronisation takes alone
    pattern        ring: each worker sends 2(W-1)/W models to the next. ps: a server on a host of its own,
                   each worker sends it a model and gets one, both in one coflow
    rate           of every host's port, bytes/s
    """

    tuners: int = 6
    hosts: int = 8
    workers: int = 4
    trials: int = 8
    eta: int = 2
    rungs: int = 4
    iterations: int = 10
    sizes_mb: tuple[float, ...] = (10, 20, 40, 80, 160)
    compute_ratio: float = 0.2
    pattern: Pattern = "ring"
    rate: float = 125e6
    one_model: bool = False

    def __post_init__(self) -> None:
        if self.pattern not in ("ring", "ps"):
            raise CoflowError(f"a pattern {self.pattern!r}", hint="ring or ps")
        if min(self.tuners, self.trials, self.rungs, self.iterations) < 1 or self.eta < 2 or self.workers < 2:
            raise CoflowError("a search without tuners, trials, rungs or iterations, or of one worker")
        if self.workers + (self.pattern == "ps") > self.hosts:
            raise CoflowError(f"{self.workers} workers do not fit on {self.hosts} hosts")
        if self.trials < self.eta ** (self.rungs - 1):
            raise CoflowError(
                f"{self.trials} trials leave none for rung {self.rungs} at eta {self.eta}",
                hint="fewer rungs or more trials",
            )
        if not self.sizes_mb or min(self.sizes_mb) <= 0 or self.compute_ratio < 0:
            raise CoflowError("models need bytes, and computing cannot take less than no time")


@dataclass(frozen=True)
class Trial:
    """A job's demand and needs, the same in every iteration."""

    id: int
    demand: Demand
    loads: Loads
    compute: float


@dataclass(frozen=True)
class StageTime:
    """A stage that has ended. Times in seconds."""

    tuner: int
    rung: int
    release: float
    finish: float

    @property
    def sct(self) -> float:
        return self.finish - self.release


@dataclass
class _Running:
    trial: Trial
    left: int
    coflow: int | None = None


@dataclass
class _Stage:
    tuner: int
    rung: int
    release: float
    jobs: dict[int, _Running]


@dataclass
class Searches:
    """A workload of `Simulation`; the same seed gives the same trials and survivors under every policy."""

    spec: SearchSpec
    seed: int
    stage_times: list[StageTime] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec, rng = self.spec, random.Random(self.seed)
        self.fabric = Fabric.switch(spec.hosts, spec.rate)
        # In the order of their scores: a rung's survivors are the first ones.
        self.trials: list[list[Trial]] = []
        for tuner in range(spec.tuners):
            sizes = (rng.choice(spec.sizes_mb),) if spec.one_model else spec.sizes_mb
            own = [self._draw(rng, tuner * spec.trials + k, sizes) for k in range(spec.trials)]
            rng.shuffle(own)
            self.trials.append(own)
        self._active: dict[int, _Stage] = {}
        self._owner: dict[int, tuple[int, int]] = {}

    def _draw(self, rng: random.Random, number: int, sizes: Sequence[float]) -> Trial:
        spec = self.spec
        size = rng.choice(sizes) * MEGABYTE
        hosts = rng.sample(range(spec.hosts), spec.workers + (spec.pattern == "ps"))
        if spec.pattern == "ring":
            hop = 2 * (spec.workers - 1) / spec.workers * size
            flows = [Flow(host, hosts[(k + 1) % spec.workers], hop) for k, host in enumerate(hosts)]
        else:
            server, *workers = hosts
            flows = [Flow(host, server, size) for host in workers]
            flows += [Flow(server, host, size) for host in workers]
        demand = Demand.of(flows)
        loads = demand.loads(self.fabric)
        return Trial(number, demand, loads, spec.compute_ratio * largest(loads))

    def start(self, simulation: Simulation) -> None:
        for tuner in range(self.spec.tuners):
            self._begin(simulation, tuner, 0)

    def _begin(self, simulation: Simulation, tuner: int, rung: int) -> None:
        spec = self.spec
        survivors = self.trials[tuner][: spec.trials // spec.eta**rung]
        iterations = spec.iterations * spec.eta**rung
        jobs = {trial.id: _Running(trial, iterations) for trial in survivors}
        self._active[tuner] = _Stage(tuner, rung, simulation.now, jobs)
        for job in jobs.values():
            self._compute(simulation, tuner, job)

    def _compute(self, simulation: Simulation, tuner: int, job: _Running) -> None:
        simulation.at(simulation.now + job.trial.compute, lambda: self._synchronise(simulation, tuner, job))

    def _synchronise(self, simulation: Simulation, tuner: int, job: _Running) -> None:
        job.left -= 1
        job.coflow = simulation.submit(job.trial.demand, job=job.trial.id)
        self._owner[job.coflow] = (tuner, job.trial.id)

    def finished(self, simulation: Simulation, number: int) -> None:
        tuner, identity = self._owner.pop(number)
        stage = self._active[tuner]
        job = stage.jobs[identity]
        job.coflow = None
        if job.left:
            self._compute(simulation, tuner, job)
            return
        del stage.jobs[identity]
        if stage.jobs:
            return
        self.stage_times.append(StageTime(tuner, stage.rung, stage.release, simulation.now))
        del self._active[tuner]
        if stage.rung + 1 < self.spec.rungs:
            self._begin(simulation, tuner, stage.rung + 1)

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        if simulation.ordering.name not in STAGED:
            return ()
        return tuple(
            Stage(
                tuner * self.spec.rungs + stage.rung,
                tuple(_job(simulation, job) for job in stage.jobs.values()),
                stage.release,
            )
            for tuner, stage in self._active.items()
        )


def _job(simulation: Simulation, job: _Running) -> Job:
    trial = job.trial
    unsent = {} if job.coflow is None else simulation.loads(job.coflow)
    return Job(trial.id, job.left, trial.compute, trial.loads, unsent)


@dataclass(frozen=True)
class SearchResult:
    """Stage completion times of one policy."""

    mean_sct_s: float
    makespan_s: float
    stages: tuple[StageTime, ...]


def run_searches(
    spec: SearchSpec, seed: int, policy: OrderingSpec, allocation: Allocation | None = None
) -> SearchResult:
    """Run the searches of a seed under a policy. FIFO-LM's threshold is by the sizes of all trials."""
    searches = Searches(spec, seed)
    ordering = get_ordering(policy)
    if isinstance(ordering, FifoLm):
        ordering = ordering.with_sizes([trial.demand.bytes for own in searches.trials for trial in own])
    Simulation(searches.fabric, ordering, searches, allocation).run()
    return _result(searches.stage_times)


def _result(stages: Sequence[StageTime]) -> SearchResult:
    return SearchResult(
        sum(stage.sct for stage in stages) / len(stages),
        max(stage.finish for stage in stages),
        tuple(stages),
    )
