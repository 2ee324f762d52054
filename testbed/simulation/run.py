"""One experiment in the simulated world: the same file in, the same run directory out, in virtual time.

Workers are replaced by the times they take (`testbed.simulation.iterations`; `compute: real` counts as no time,
since nothing is computed here). Everything between gradients and their sums is the agents' own code. Traces hold
virtual times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from agents.decision_file import DecisionFile
from agents.planning.base import Plan
from agents.planning.registry import get_scheduler, library_of
from testbed.experiments.manifest import DECISIONS, TRACE, Manifest, SegmentStatus
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.simulation.changes import LinkChanges
from testbed.simulation.iterations import Iterations
from testbed.simulation.notes import cuts, fidelity, measured
from testbed.simulation.recording import LinkSampler, OnDirectory, recorded
from testbed.simulation.world import REALISTIC, SECOND, World, WorldOptions
from topologies.errors import RunFailedError

Say = Callable[[str], None]


def run_experiment(
    experiment: LoadedExperiment,
    out_dir: Path,
    on_progress: Say = lambda text: None,
    *,
    on_directory: OnDirectory = lambda path: None,
    options: WorldOptions = REALISTIC,
) -> Manifest:
    """Run every segment and write the run directory `out_dir`, which must not exist.

    Raises RunFailedError when a collective fails or misses its deadline; the directory then tells so too.
    """
    with recorded(experiment, out_dir, fidelity(experiment, options), on_directory) as run:
        SimulatedRun(experiment, run, on_progress, options).execute()
    return run.manifest


class SimulatedRun:
    """The segments of one experiment, one after the other, in one world."""

    def __init__(
        self, experiment: LoadedExperiment, run: RunDirectory, say: Say, options: WorldOptions = REALISTIC
    ) -> None:
        self._experiment = experiment
        self._run = run
        self._say = say
        self._training = experiment.spec.training
        self._cuts = cuts(experiment)
        self._follows = self._cuts or any(measured(segment) for segment in experiment.segments)
        self.world = World(
            experiment.topology,
            job=run.manifest.id,
            options=options,
            coordinator=experiment.spec.coordinator_site,
            whole=self._follows,
            deadline_s=self._training.deadline_s,
        )
        self.world.on_complete = self._completed
        self.world.on_ready = self._plan_in_turn
        self._decisions = DecisionFile(run.path / DECISIONS)
        self.world.coordinator.on_decision = self._decisions.write
        self._rows = run.manifest.workers
        self._traces = [StringIO() for _ in self._rows]
        self._segment: Segment | None = None
        self._iterations: Iterations | None = None
        self._planned_at = self._draws = 0
        self._changes = LinkChanges(experiment, self.world, self._note_changes)
        self._sampler = LinkSampler(self.world, self._changes.links, run)

    def execute(self) -> None:
        spec = self._experiment.spec
        try:
            if spec.dynamics.replay == "run":
                self._changes.play(spec.seed)
            for segment in self._experiment.turns:
                self._conduct(segment)
                if spec.dynamics.replay == "segment":
                    self._changes.rewind()
                    # The next turn is not planned without the cables that this one has cut.
                    self.world.clock.run(until=lambda: self.world.links_settled)
        finally:
            self._decisions.close()
            for row, trace in zip(self._rows, self._traces, strict=True):
                folder = self._run.worker(row.site, row.worker)
                folder.joinpath(TRACE).write_text(trace.getvalue(), encoding="utf-8")

    def _conduct(self, segment: Segment) -> None:
        world, clock = self.world, self.world.clock
        self._say(f"{segment.label}: {segment.iterations} iterations")
        self._decisions.begin(segment.label)
        world.settle_anew()
        plan = self._plan(segment)
        world.announce_ahead(segment.policy.announced)
        self._planned_at, self._draws = world.coordinator.next_seq, 0
        self._run.set_plan(segment.label, plan.to_dict(self._experiment.topology.site_names))
        self._run.begin_segment(segment.label, clock.now_ns)
        self._segment = segment
        iterations = self._iterations = Iterations(world, self._training, segment, self._rows, self._traces)
        if self._experiment.spec.dynamics.replay == "segment":
            self._changes.play(segment.seed)
        self._sampler.begin(segment.label)
        began, released = clock.now_ns, len(world.policies)
        status: SegmentStatus = "failed"
        try:
            iterations.begin()
            clock.run(until=lambda: iterations.finished == world.n or bool(world.failures))
            self._check(segment, iterations)
            status = "completed"
        finally:
            self._sampler.end()
            self._run.end_segment(segment.label, clock.now_ns, status)
            self._segment = None
            network = world.measure().end() if self._follows else None
            self._run.events.write(
                "network-followed",
                segment=segment.label,
                policies=world.policies[released:],
                network=network if self._cuts or measured(segment) else None,
            )
        self._say(f"{segment.label}: {(clock.now_ns - began) / SECOND:.2f} s of virtual time")

    def _plan(self, segment: Segment) -> Plan:
        """The segment's first plan, which holds from its first collective on."""
        world = self.world
        if not self._follows:
            return world.use(segment.scheduler, self._training.chunk_elements)
        planner = get_scheduler(segment.scheduler, self._experiment.topology.site_names)
        return world.measure().begin(
            segment.awareness,
            segment.auxiliary,
            planner.plan,
            lambda plan, why: self._use(segment, plan, why),
            segment.policy.failures,
        )

    def _use(self, segment: Segment, plan: Plan, why: Mapping[str, Any]) -> None:
        """From the next collective on, or as the segment's policy says."""
        world = self.world
        # What the segment begins with is no change.
        if self._segment is segment and segment.policy.switch == "within":
            world.replan_within(world.coordinator.next_seq - 1, plan, self._training.chunk_elements, why)
        else:
            # Other libraries know no path but the primary.
            hop_paths: dict[tuple[int, int], int] | None = {} if library_of(segment.scheduler) else None
            world.use_plan(plan, self._training.chunk_elements, why, hop_paths=hop_paths)

    def _plan_in_turn(self) -> None:
        """`policy: {every: N}`: a new plan after so many collectives, whatever the rates."""
        segment = self._segment
        if segment is None or not segment.policy.every:
            return
        if self.world.coordinator.next_seq < self._planned_at + segment.policy.every:
            return
        self._planned_at = self.world.coordinator.next_seq
        if self._follows:
            self.world.measure().plan_again("every")
            return
        self._draws += 1
        planner = get_scheduler(segment.scheduler, self._experiment.topology.site_names)
        plan = planner.plan(replace(self.world.foreseen(self.world.view()), draw=self._draws))
        self._use(segment, plan, {"reason": "every"})

    def _note_changes(self, rows: list[dict[str, Any]]) -> None:
        now_s = self.world.clock.now_ns / SECOND
        self._run.add_changes(now_s, self._segment.label if self._segment else "", rows)

    def _completed(self, site: int, seq: int) -> None:
        assert self._iterations is not None
        self._iterations.completed(site)

    # ---- how it ended

    def _check(self, segment: Segment, iterations: Iterations) -> None:
        world = self.world
        if world.failures:
            # Said as the coordinator says it to everybody: the same words in both worlds.
            raise RunFailedError(world.failures[0][2], hint=self._why_it_may_be())
        if iterations.finished < world.n:
            seq = world.oldest_open
            site = next(k for k in range(world.n) if world.records[seq].done_ns[k] < 0)
            missing = world.sites[site].waiting_for(seq)
            raise RunFailedError(f"{segment.label}: the simulated network came to rest; missing: {missing}")

    def _why_it_may_be(self) -> str:
        """What is wrong with the network at the moment, or what else to look at."""
        names, rerouting = self._experiment.topology.site_names, self.world.lanes.rerouting
        if rerouting is None or not rerouting.broken:
            return "raise training.deadline_s, or scale the network up"
        down = ", ".join(f"{names[u]}>{names[v]}" for u, v in sorted(rerouting.broken))
        parted = ", ".join(f"{names[u]} and {names[v]}" for u, v in rerouting.parted if u < v)
        return f"{down} carried nothing" + (f", which parts {parted}" if parted else "")
