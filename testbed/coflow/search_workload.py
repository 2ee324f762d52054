"""Searches as a workload of the simulator: stages of jobs that compute and synchronise in turns.

The stage machines are `agents.search`'s. A job is a trial's part of a stage; it repeats: compute, then one coflow,
until its boundary, and then reports its score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from agents.coflow.base import Job, Loads, Stage, largest
from agents.coflow.fabric import Fabric
from agents.coflow.registry import STAGED
from agents.search.base import Rung, StagePlan, TrialRun, Tuner
from testbed.coflow.demand import Demand
from testbed.coflow.simulator import Simulation


@dataclass(frozen=True, eq=False)
class Training:
    """What a trial does in every iteration: compute so many seconds, then send this."""

    demand: Demand
    compute: float


@dataclass(frozen=True)
class Search:
    """A tuner, what its trials do, and the scores they come to."""

    tuner: Tuner
    training: Callable[[TrialRun], Training]
    score: Callable[[TrialRun], float | None]


@dataclass(frozen=True)
class JobTime:
    """A job that has ended. Seconds; `alone` is what it needs on an empty network."""

    search: int
    stage: int
    trial: int
    release: float
    finish: float
    alone: float

    @property
    def jct(self) -> float:
        return self.finish - self.release


@dataclass(frozen=True)
class StageTime:
    """A stage that has ended. Seconds.

    stage    as the tuner numbers it
    alone    what no schedule can beat: its longest job alone, or its busiest link
    barrier  whether the search waited for all its jobs
    """

    search: int
    stage: int
    bracket: int
    rung: int
    jobs: int
    release: float
    finish: float
    alone: float
    barrier: bool = True

    @property
    def sct(self) -> float:
        return self.finish - self.release


@dataclass
class _Running:
    number: int
    run: TrialRun
    training: Training
    loads: Loads
    left: int
    coflow: int | None = None

    idle: Job | None = None

    def job(self, simulation: Simulation) -> Job:
        if self.coflow is not None:
            return Job(
                self.number, self.left, self.training.compute, self.loads, simulation.loads(self.coflow)
            )
        if self.idle is None or self.idle.iterations != self.left:
            self.idle = Job(self.number, self.left, self.training.compute, self.loads)
        return self.idle

    @cached_property
    def whole(self) -> Job:
        """As it is at its release."""
        return Job(self.number, self.run.iterations, self.training.compute, self.loads)


@dataclass
class _Stage:
    number: int
    search: int
    plan: StagePlan
    release: float
    jobs: dict[int, _Running]
    alone: float
    ahead: Loads
    ahead_alone: float


@dataclass
class SearchWorkload:
    """A workload of `Simulation`. Stages and jobs are numbered as they begin, over all searches."""

    fabric: Fabric
    searches: Sequence[Search]
    stage_times: list[StageTime] = field(default_factory=list, init=False)
    job_times: list[JobTime] = field(default_factory=list, init=False)
    _active: dict[int, _Stage] = field(default_factory=dict, init=False)
    _owner: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)
    _stage_count: int = field(default=0, init=False)
    _job_count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._first = [search.tuner.start().stages for search in self.searches]

    def start(self, simulation: Simulation) -> None:
        for number, plans in enumerate(self._first):
            self._begin(simulation, number, plans)

    def first_jobs(self) -> list[list[tuple[TrialRun, Training]]]:
        """Of every stage that begins at 0: its trials, and what they do."""
        return [
            [(run, self.searches[number].training(run)) for run in plan.runs]
            for number, plans in enumerate(self._first)
            for plan in plans
        ]

    def _begin(self, simulation: Simulation, search: int, plans: Iterable[StagePlan]) -> None:
        for plan in plans:
            jobs = {}
            for run in plan.runs:
                training = self.searches[search].training(run)
                loads = training.demand.loads(self.fabric)
                jobs[run.trial] = _Running(self._job_count, run, training, loads, run.iterations)
                self._job_count += 1
            whole = Stage(self._stage_count, tuple(job.whole for job in jobs.values()))
            alone = max(largest(whole.loads), *(job.alone for job in whole.jobs))
            ahead, ahead_alone = expected(whole.jobs, self.searches[search].tuner.after(plan.id))
            stage = _Stage(self._stage_count, search, plan, simulation.now, jobs, alone, ahead, ahead_alone)
            self._active[stage.number] = stage
            self._stage_count += 1
            for job in jobs.values():
                self._compute(simulation, stage.number, job)

    def _compute(self, simulation: Simulation, stage: int, job: _Running) -> None:
        simulation.at(simulation.now + job.training.compute, lambda: self._synchronise(simulation, stage, job))

    def _synchronise(self, simulation: Simulation, stage: int, job: _Running) -> None:
        job.left -= 1
        job.coflow = simulation.submit(job.training.demand, job=job.number)
        self._owner[job.coflow] = (stage, job.run.trial)

    def finished(self, simulation: Simulation, number: int) -> None:
        stage_number, trial = self._owner.pop(number)
        stage = self._active[stage_number]
        job = stage.jobs[trial]
        job.coflow = None
        if job.left:
            self._compute(simulation, stage_number, job)
            return
        del stage.jobs[trial]
        search, plan, now = self.searches[stage.search], stage.plan, simulation.now
        self.job_times.append(JobTime(stage.search, plan.id, trial, stage.release, now, job.whole.alone))
        if not stage.jobs:
            del self._active[stage_number]
            self.stage_times.append(
                StageTime(
                    stage.search,
                    plan.id,
                    plan.bracket,
                    plan.rung,
                    len(plan.runs),
                    stage.release,
                    now,
                    stage.alone,
                    plan.barrier,
                )
            )
        self._begin(simulation, stage.search, search.tuner.report(plan.id, trial, search.score(job.run)).stages)

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        if simulation.ordering.name not in STAGED:
            return ()
        return tuple(
            Stage(
                stage.number,
                tuple(job.job(simulation) for job in stage.jobs.values()),
                stage.release,
                ahead=stage.ahead,
                ahead_alone=stage.ahead_alone,
            )
            for stage in self._active.values()
        )


def expected(jobs: Sequence[Job], rungs: Iterable[Rung]) -> tuple[dict[int, float], float]:
    """What later rungs need if their trials are like these jobs in the mean: seconds on each link, and one after the
    other on an empty network."""
    each: dict[int, float] = {}
    for job in jobs:
        for link, load in job.loads.items():
            each[link] = each.get(link, 0.0) + load / len(jobs)
    longest = [job.compute + largest(job.loads) for job in jobs]
    total, alone = 0, 0.0
    for rung in rungs:
        iterations = rung.end - rung.start
        total += rung.trials * iterations
        alone += iterations * max(longest) if rung.trials > 1 else iterations * sum(longest) / len(longest)
    return {link: total * load for link, load in each.items()}, alone
