"""Searches in the simulated world: the same trials, sites and scores, on fluid links with a virtual clock.

A synchronisation is one coflow with all its flows at once, up and down; what the first chunk takes on its way and
the barrier of the collective are added to it (`_overhead_s`). Rates respect the order at once and for every flow:
no gates, no classes, no chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agents.coflow.base import Job, Stage
from agents.coflow.coordinator import JobNeeds
from agents.coflow.fabric import Fabric, Flow
from agents.coflow.registry import STAGED, get_ordering
from agents.search.base import StagePlan, TrialRun, Tuner
from testbed.coflow.demand import Demand
from testbed.coflow.simulator import Simulation
from testbed.experiments.manifest import Manifest
from testbed.experiments.search_check import names_of
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.report.measurements import LinkSample
from testbed.searches.plan import (
    FLOAT_BYTES,
    SearchPlan,
    TrialJob,
    ahead_of,
    alone_s,
    layers_of,
    make_search,
    model_bytes,
    needs_of,
    ordering_of,
    plan_searches,
    settings_of,
    trial_seed,
    tuner_seed,
)
from testbed.searches.records import CoflowRow, SearchRecords, StageRow, TrialRow
from testbed.searches.training import Trained, Training
from testbed.simulation.iterations import compute_seconds
from testbed.simulation.notes import fidelity_of_searches
from testbed.simulation.options import REALISTIC, WorldOptions
from testbed.simulation.recording import OnDirectory, link_sample, recorded

Say = Callable[[str], None]


def run_searches(
    experiment: LoadedExperiment,
    out_dir: Path,
    say: Say = lambda text: None,
    *,
    on_directory: OnDirectory = lambda path: None,
    options: WorldOptions = REALISTIC,
) -> Manifest:
    """Run every turn and write the run directory `out_dir`, which must not exist."""
    with recorded(experiment, out_dir, fidelity_of_searches(experiment, options), on_directory) as run:
        plan, records, training = plan_searches(experiment), SearchRecords(run.path), Training(experiment.data)
        run.update(workers=plan.workers(run.manifest.workers))
        began_s = 0.0
        for segment in experiment.turns:
            run.begin_segment(segment.label, round(began_s * 1e9))
            turn = SimulatedTurn(experiment, plan, segment, training, options)
            ended_s = turn.run(began_s)
            records.add(turn.rows)
            run.add_links(turn.links(began_s, ended_s))
            run.end_segment(segment.label, round(ended_s * 1e9), "completed")
            say(f"{segment.label}: {ended_s - began_s:.2f} s of virtual time")
            began_s = ended_s
    return run.manifest


@dataclass
class _Running:
    """A trial in a stage."""

    job: TrialJob
    number: int
    run: TrialRun
    needs: JobNeeds
    demand: Demand
    start_s: float
    at: int
    coflow: int | None = None


@dataclass
class _Active:
    """A stage under way."""

    tuner: int
    number: int
    plan: StagePlan
    start_s: float
    alone_s: float
    jobs: dict[int, _Running] = field(default_factory=dict)
    ahead: tuple[dict[int, float], float] = ({}, 0.0)


class SimulatedTurn:
    """All tuners at once under one policy: a `Workload` of the coflow simulator.

    Attributes:
        rows: what the turn came to.
    """

    def __init__(
        self,
        experiment: LoadedExperiment,
        plan: SearchPlan,
        segment: Segment,
        training: Training,
        options: WorldOptions,
    ) -> None:
        self._experiment, self._plan, self._segment, self._training = experiment, plan, segment, training
        self._options = options
        self._fabric: Fabric = plan.fabric(options.efficiency)
        self._names = names_of(experiment.spec)
        self._seeds = [tuner_seed(segment, entry, k) for k, entry in enumerate(experiment.spec.tuners)]
        self._searches: list[Tuner] = [
            make_search(entry, seed) for entry, seed in zip(experiment.spec.tuners, self._seeds, strict=True)
        ]
        self._active: dict[tuple[int, int], _Active] = {}
        self._owners: dict[int, tuple[_Active, _Running]] = {}
        self._states: dict[tuple[int, int, int], Trained] = {}
        self._began_s = 0.0
        self._numbers = {key: number for number, key in enumerate(plan.jobs)}
        self._stage_count = 0
        self._carried = [0.0] * len(experiment.topology.directed)
        self._finishes: dict[int, tuple[str, float, float, float]] = {}
        self.rows: list[StageRow | TrialRow | CoflowRow] = []

    def run(self, began_s: float) -> float:
        """Run it; `began_s` is its start on the run's clock. Returns its end."""
        self._began_s = began_s
        ordering = get_ordering(ordering_of(self._plan, self._experiment.spec, self._segment.shown))
        simulation = Simulation(self._fabric, ordering, self)
        simulation.run()
        return began_s + simulation.now

    def links(self, began_s: float, ended_s: float) -> list[LinkSample]:
        """What every link carried over the turn, as one sample; bytes on the wire."""
        return [
            link_sample(
                link,
                self._segment.label,
                end_s=ended_s,
                interval_s=ended_s - began_s,
                payload_bits=8 * carried,
                efficiency=self._options.efficiency,
            )
            for link, carried in zip(self._experiment.topology.directed, self._carried, strict=True)
        ]

    # ---- the workload

    def start(self, simulation: Simulation) -> None:
        for tuner, search in enumerate(self._searches):
            for stage in search.start().stages:
                self._begin(simulation, tuner, stage)

    def stages(self, simulation: Simulation) -> tuple[Stage, ...]:
        if simulation.ordering.name not in STAGED:
            return ()
        return tuple(
            Stage(
                active.number,
                tuple(self._left(simulation, job) for job in active.jobs.values()),
                active.start_s,
                ahead=active.ahead[0],
                ahead_alone=active.ahead[1],
            )
            for active in self._active.values()
        )

    def finished(self, simulation: Simulation, number: int) -> None:
        """The fluid has arrived; the collective ends a little later."""
        active, running = self._owners.pop(number)
        running.coflow = None
        done = simulation.done[number]
        overhead = self._overhead_s(running)
        self._finishes[number] = running.job.name, done.arrival, done.finish + overhead, done.isolation
        simulation.at(simulation.now + overhead, lambda: self._synchronised(simulation, active, running, number))

    def _left(self, simulation: Simulation, running: _Running) -> Job:
        unsent = {} if running.coflow is None else simulation.loads(running.coflow)
        begun = running.coflow is not None
        needs = running.needs
        return Job(running.number, running.run.end - running.at - begun, needs.compute, needs.loads, unsent)

    def _begin(self, simulation: Simulation, tuner: int, stage: StagePlan) -> None:
        spec = self._experiment.spec
        active = _Active(tuner, self._stage_count, stage, simulation.now, 0.0)
        self._stage_count += 1
        for run in stage.runs:
            job = self._plan.jobs[self._names[tuner], run.trial]
            size = model_bytes(settings_of(spec, run.parameters))
            flows = [Flow(src, dst, amount * size) for (src, dst), amount in job.flows.items()]
            active.jobs[run.trial] = _Running(
                job,
                self._numbers[self._names[tuner], run.trial],
                run,
                needs_of(job, spec, run),
                Demand.of(flows),
                simulation.now,
                run.start,
            )
        needs = [running.needs for running in active.jobs.values()]
        active.alone_s = alone_s(needs)
        active.ahead = ahead_of(needs, self._searches[tuner], stage.id)
        self._active[tuner, stage.id] = active
        for running in active.jobs.values():
            self._compute(simulation, active, running)

    def _compute(self, simulation: Simulation, active: _Active, running: _Running) -> None:
        seconds = self._compute_s(active, running)
        simulation.at(simulation.now + seconds, lambda: self._synchronise(simulation, active, running))

    def _compute_s(self, active: _Active, running: _Running) -> float:
        """Until the last worker is ready, as the emulated workers draw it."""
        compute = self._experiment.spec.training.compute
        seed = trial_seed(self._seeds[active.tuner], running.run.trial)
        names = self._experiment.topology.site_names
        return max(
            compute_seconds(compute, names[site], seed, rank, running.at)
            for rank, site in enumerate(running.job.members)
        )

    def _overhead_s(self, running: _Running) -> float:
        """What a chunk takes on its way up and down besides the coflow's own bytes, and the barrier before it."""
        model = model_bytes(settings_of(self._experiment.spec, running.run.parameters))
        chunk = min(self._experiment.spec.training.chunk_elements * FLOAT_BYTES, model)
        slowest = max(
            (1 / self._fabric.capacity[link] for hop in running.job.flows for link in self._fabric.route(*hop)),
            default=0.0,
        )
        return float(chunk * slowest + running.job.delay_s + 2e-9 * self._options.control_delay_ns)

    def _synchronise(self, simulation: Simulation, active: _Active, running: _Running) -> None:
        number = simulation.submit(running.demand, job=running.number)
        running.coflow = number
        self._owners[number] = active, running
        for (src, dst), amount in running.job.flows.items():
            size = model_bytes(settings_of(self._experiment.spec, running.run.parameters))
            for link in self._fabric.route(src, dst):
                self._carried[link] += amount * size

    def _synchronised(self, simulation: Simulation, active: _Active, running: _Running, number: int) -> None:
        name, arrival, finish, isolation = self._finishes.pop(number)
        began = self._began_s
        self.rows.append(
            CoflowRow(self._segment.label, name, number, began + arrival, began + finish, isolation, 0.0, 0)
        )
        running.at += 1
        if running.at < running.run.end:
            self._compute(simulation, active, running)
        else:
            self._ended(simulation, active, running)

    def _ended(self, simulation: Simulation, active: _Active, running: _Running) -> None:
        """A trial has reached its boundary: its score decides what follows."""
        run, tuner, now = running.run, active.tuner, self._began_s + simulation.now
        trained = self._train(tuner, running)
        self.rows.append(
            TrialRow.of(
                self._segment.label,
                self._names[tuner],
                active.plan,
                run,
                sites=self._plan.sites(running.job),
                start_s=self._began_s + running.start_s,
                end_s=now,
                score=trained.score,
            )
        )
        del active.jobs[run.trial]
        if not active.jobs:
            del self._active[tuner, active.plan.id]
            self.rows.append(self._stage_row(active, now))
        for stage in self._searches[tuner].report(active.plan.id, run.trial, trained.score).stages:
            self._begin(simulation, tuner, stage)

    def _train(self, tuner: int, running: _Running) -> Trained:
        run = running.run
        settings = settings_of(self._experiment.spec, run.parameters)
        source = None if run.source is None else self._states[tuner, run.source, run.start]
        seed = trial_seed(self._seeds[tuner], run.trial)
        trained = self._training.train(
            run, settings, layers_of(settings), seed, len(running.job.members), source
        )
        self._states[tuner, run.trial, run.end] = trained
        return trained

    def _stage_row(self, active: _Active, now: float) -> StageRow:
        start_s = self._began_s + active.start_s
        return StageRow.of(
            self._segment.label, self._names[active.tuner], active.plan, start_s, now, active.alone_s
        )
