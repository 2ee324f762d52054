"""One experiment in the simulated world: the same file in, the same run directory out, in virtual time.

Workers are replaced by the times they take: an iteration computes for its declared time (drawn as the
emulated workers draw it; `real` counts as no time, since nothing is computed here), hands its gradients over,
and goes on when the last result is there. Everything in between is the agents' own code. Traces hold virtual
times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path

from agents.compute import ComputeTime
from agents.decision_file import DecisionFile
from agents.planning.base import Plan
from agents.planning.batches import next_batches
from agents.planning.registry import get_scheduler
from agents.sync.spec import allreduce
from testbed.experiments.manifest import DECISIONS, TRACE, FidelityRow, Manifest, SegmentStatus
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.schema import Compute
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.report.measurements import LinkSample
from testbed.simulation.world import REALISTIC, SECOND, World, WorldOptions
from testbed.timeline import Step, steps
from topologies.dynamics import Changes
from topologies.errors import RunFailedError
from topologies.model import DirectedLink

Say = Callable[[str], None]
SAMPLE_NS = SECOND
LOOK_AHEAD = 10_000
"""How many changes of a trace are searched for losses, which are not simulated."""


def run_experiment(
    experiment: LoadedExperiment,
    out_dir: Path,
    on_progress: Say = lambda text: None,
    *,
    on_directory: Callable[[Path], None] = lambda path: None,
    options: WorldOptions = REALISTIC,
) -> Manifest:
    """Run every segment and write the run directory `out_dir`, which must not exist.

    `on_directory` is told the directory as soon as there is one, also of a run that then fails.

    Raises RunFailedError when a collective fails or misses its deadline; the directory then tells so too.
    """
    with RunDirectory(out_dir, experiment, "simulated") as run:
        on_directory(run.path)
        failure: BaseException | None = None
        try:
            SimulatedRun(experiment, run, on_progress, options).execute()
        except BaseException as error:
            failure = error
            raise
        finally:
            run.finish(failure, _fidelity(experiment, options))
        return run.manifest


def _fidelity(experiment: LoadedExperiment, options: WorldOptions) -> FidelityRow:
    reasons = [
        "simulated: fluid links shared max-min fairly, no loss and no slow start; payload gets "
        f"{options.efficiency:.0%} of every rate"
    ]
    if experiment.spec.training.compute.real:
        reasons.append("computation counts as no time, because the experiment declares none")
    limited = sum(site.cpu is not None for site in experiment.topology.sites.values())
    if limited:
        reasons.append(f"the declared cpu of {limited} sites is not simulated; declared compute times are")
    lossy = sum(link.loss.ratio > 0 for link in experiment.topology.directed)
    if lossy:
        reasons.append(f"the declared loss of {lossy} directed links, in bursts or not, is not simulated")
    if _losses_to_come(experiment):
        reasons.append("losses that dynamics or timeline set are not simulated")
    if any(link.jitter.ns for link in experiment.topology.directed):
        reasons.append("declared jitter is not simulated")
    if _cuts(experiment):
        reasons.append("a cut link costs TCP its retransmission timers, nothing else")
    if any(_measured(segment) for segment in experiment.segments):
        reasons.append("planning takes no virtual time")
    return FidelityRow(verdict="exact", reasons=tuple(reasons))


class SimulatedRun:
    """The segments of one experiment, one after the other, in one world."""

    def __init__(
        self, experiment: LoadedExperiment, run: RunDirectory, say: Say, options: WorldOptions = REALISTIC
    ) -> None:
        self._experiment = experiment
        self._run = run
        self._say = say
        self._training = experiment.spec.training
        self.world = World(
            experiment.topology,
            job=run.manifest.id,
            options=options,
            coordinator=experiment.spec.coordinator_site,
            whole=_cuts(experiment) or any(_measured(segment) for segment in experiment.segments),
            deadline_s=self._training.deadline_s,
        )
        self.world.on_complete = self._completed
        self.world.on_ready = self._plan_in_turn
        self._decisions = DecisionFile(run.path / DECISIONS)
        self.world.coordinator.on_decision = self._decisions.write
        self._ranks: list[list[int]] = [[] for _ in range(self.world.n)]
        for row in run.manifest.workers:
            self._ranks[experiment.topology.index(row.site)].append(row.rank)
        self._rows = run.manifest.workers
        self._traces = [StringIO() for _ in self._rows]
        self._segment: Segment | None = None
        self._sampled_bits = [0.0] * len(experiment.topology.directed)
        self._sampled_ns = 0
        # Of the iteration that each site is in:
        self._sizes: list[tuple[int, ...]] = []  # samples of every rank, iteration by iteration
        self._iteration = [0] * self.world.n
        self._start_ns = [0] * self.world.n
        self._ready_ns = [0] * len(self._rows)
        self._finished = 0
        self._links = list(experiment.topology.directed)
        self._planned_at = self._draws = 0
        self._playing = 0  # counts the plays of dynamics, so that an event of an earlier one is known

    def execute(self) -> None:
        spec = self._experiment.spec
        try:
            if spec.dynamics.replay == "run":
                self._play(spec.seed)
            for segment in self._experiment.turns:
                self._conduct(segment)
                if spec.dynamics.replay == "segment":
                    self._rewind()
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
        self._segment, self._finished = segment, 0
        self._sizes = []
        self._sampled_ns = clock.now_ns
        if self._experiment.spec.dynamics.replay == "segment":
            self._play(segment.seed)
        self._tick_later(segment)
        began, released = clock.now_ns, len(world.policies)
        status: SegmentStatus = "failed"
        try:
            for site in range(world.n):
                self._iteration[site] = 0
                self._begin_iteration(site)
            clock.run(until=lambda: self._finished == world.n or bool(world.failures))
            self._check(segment)
            status = "completed"
        finally:
            self._sample()
            self._run.end_segment(segment.label, clock.now_ns, status)
            self._segment = None
            network = world.measure().end() if _measured(segment) else None
            policies = world.policies[released:]
            self._run.events.write(
                "network-followed", segment=segment.label, policies=policies, network=network
            )
        self._say(f"{segment.label}: {(clock.now_ns - began) / SECOND:.2f} s of virtual time")

    def _plan(self, segment: Segment) -> Plan:
        """The segment's first plan, which holds from its first collective on."""
        world = self.world
        if world.measuring is None and not _measured(segment):
            return world.use(segment.scheduler, self._training.chunk_elements)
        planner = get_scheduler(segment.scheduler, self._experiment.topology.site_names)
        return world.measure().begin(
            segment.awareness,
            segment.auxiliary,
            planner.plan,
            lambda plan: self._use(plan, "rates" if self._segment is segment else "start"),
        )

    def _use(self, plan: Plan, reason: str) -> None:
        """From the next collective on, or as the segment's policy says."""
        world, segment = self.world, self._segment
        if segment is not None and segment.policy.switch == "within":
            world.replan_within(
                world.coordinator.next_seq - 1, plan, self._training.chunk_elements, reason
            )
        else:
            world.use_plan(plan, self._training.chunk_elements, reason)

    def _plan_in_turn(self) -> None:
        """`policy: {every: N}`: a new plan after so many collectives, whatever the rates."""
        segment = self._segment
        if segment is None or not segment.policy.every:
            return
        if self.world.coordinator.next_seq >= self._planned_at + segment.policy.every:
            self._planned_at = self.world.coordinator.next_seq
            self._draws += 1
            planner = get_scheduler(segment.scheduler, self._experiment.topology.site_names)
            plan = planner.plan(replace(self.world.view(), draw=self._draws))
            self._use(plan, "every")

    # ---- links that change

    def _play(self, seed: int) -> None:
        """From now on dynamics and timeline change the links; see `testbed.timeline.steps`."""
        spec = self._experiment.spec
        began = self.world.clock.now_ns
        self._playing += 1
        playing = self._playing
        coming = steps(
            self._experiment.topology,
            spec.dynamics,
            spec.timeline,
            seed=seed,
            scale=spec.scale,
            folder=self._experiment.source.parent,
        )

        def next_one() -> None:
            step = next(coming, None)
            if step is None:
                return
            due = began + round(step.t_s * SECOND)
            if due <= self.world.clock.now_ns:
                apply(step)
            else:
                self.world.clock.at(due, lambda: apply(step))

        def apply(step: Step) -> None:
            if playing == self._playing:
                self._step(step)
                next_one()

        next_one()

    def _step(self, step: Step) -> None:
        if step.empty:
            return
        if step.down or step.blackhole:
            self.world.cut(step.down, step.blackhole)
        self._set(step.links.values())
        rerouting = self.world.lanes.rerouting
        rows = []
        for index in sorted({*step.links, *step.down, *step.blackhole}):
            link = self._links[index]
            rows.append(
                {
                    "src": link.src_name,
                    "dst": link.dst_name,
                    "rate_bps": link.rate.bps,
                    "delay_s": link.delay.seconds,
                    "loss_ratio": link.loss.ratio,
                    "loss_burst": link.loss.burst,
                    "state": "up" if rerouting is None else rerouting.condition(index),
                }
            )
        now_s = self.world.clock.now_ns / SECOND
        self._run.add_changes(now_s, self._segment.label if self._segment else "", rows)

    def _set(self, links: Iterable[DirectedLink]) -> None:
        for link in links:
            self._links[link.index] = link
            self.world.network.set_rate(link.index, link.rate.bps)
            self.world.network.set_delay(link.index, link.delay.ns)

    def _rewind(self) -> None:
        """Every link as declared again, and nothing more of what was to come."""
        self._playing += 1
        declared = self._experiment.topology.directed
        self._set(link for link in declared if self._links[link.index] != link)
        rerouting = self.world.lanes.rerouting
        if rerouting is not None:
            self.world.cut(*(dict.fromkeys(rerouting.cut[kind], False) for kind in ("down", "blackhole")))

    # ---- iterations

    def _begin_iteration(self, site: int) -> None:
        """All workers of a site start their next iteration; the site is ready when its last worker is."""
        segment = self._segment
        assert segment is not None
        clock = self.world.clock
        self._start_ns[site] = clock.now_ns
        number = self._iteration[site]
        name = self._experiment.topology.site_names[site]
        spec = allreduce(segment.elements, "float32")

        def begin() -> None:
            self.world.begin(site, spec)

        for rank in self._ranks[site]:
            seconds = compute_seconds(self._training.compute, name, segment.seed, rank, number)
            seconds *= self._batches(number)[rank] / self._training.batch
            self._ready_ns[rank] = clock.now_ns + round(seconds * SECOND)
        clock.at(max(self._ready_ns[rank] for rank in self._ranks[site]), begin)

    def _batches(self, number: int) -> tuple[int, ...]:
        """Samples of every rank in an iteration, divided as the emulated workers do it."""
        segment, training = self._segment, self._training
        assert segment is not None
        if not self._sizes:
            self._sizes = [(training.batch,) * len(self._rows)]
        while len(self._sizes) <= number:
            sizes, last = self._sizes[-1], len(self._sizes) - 1
            if segment.batches == "split":
                means = [
                    compute_seconds(training.compute, row.site, segment.seed, row.rank, last)
                    for row in self._rows
                ]
                times = [mean * size / training.batch for mean, size in zip(means, sizes, strict=True)]
                sizes = next_batches(sizes, times)
            self._sizes.append(sizes)
        return self._sizes[number]

    def _completed(self, site: int, seq: int) -> None:
        segment, now = self._segment, self.world.clock.now_ns
        assert segment is not None
        for rank in self._ranks[site]:
            record = {
                "segment": segment.label,
                "scheduler": segment.shown,
                "iteration": self._iteration[site],
                "start_ns": self._start_ns[site],
                "ready_ns": self._ready_ns[rank],
                "done_ns": now,
                "end_ns": now,
            }
            self._traces[rank].write(json.dumps(record) + "\n")
        self._iteration[site] += 1
        if self._iteration[site] < segment.iterations:
            self._begin_iteration(site)
        else:
            self._finished += 1

    # ---- watching

    def _check(self, segment: Segment) -> None:
        world = self.world
        if world.failures:
            # Said as the coordinator says it to everybody: the same words in both worlds.
            raise RunFailedError(world.failures[0][2], hint=self._why_it_may_be())
        if self._finished < world.n:
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

    def _tick_later(self, segment: Segment) -> None:
        """Sample the links every second of a segment's time, as long as it lasts."""

        def tick() -> None:
            # The next segment begins in the moment in which this one ends, and has ticks of its own.
            if self._segment is not segment:
                return
            self._sample()
            # A network at rest must be seen to be at rest, so the sampling alone keeps nothing alive.
            if self.world.clock.pending:
                self._tick_later(segment)

        self.world.clock.after(SAMPLE_NS, tick)

    def _sample(self) -> None:
        network, now = self.world.network, self.world.clock.now_ns
        elapsed = now - self._sampled_ns
        if not elapsed or self._segment is None:
            return
        network.settle()
        samples = []
        for link, carried, before in zip(self._links, network.carried_bits, self._sampled_bits, strict=True):
            # On the wire, as the emulated links count: payload and what is lost around it.
            bits = (carried - before) / network.efficiency
            samples.append(
                LinkSample(
                    t_s=now / SECOND,
                    interval_s=elapsed / SECOND,
                    segment=self._segment.label,
                    src=link.src_name,
                    dst=link.dst_name,
                    configured_bps=link.rate.bps,
                    achieved_bps=bits * SECOND / elapsed,
                    carried_bytes=round(bits / 8),
                    dropped_packets=0,
                )
            )
        self._run.add_links(samples)
        self._sampled_bits = list(network.carried_bits)
        self._sampled_ns = now


def _measured(segment: Segment) -> bool:
    return segment.awareness.on or segment.auxiliary.on


def _losses_to_come(experiment: LoadedExperiment) -> bool:
    spec = experiment.spec
    changes: Iterator[Changes] = iter(())
    if spec.dynamics.kind == "trace":  # no other kind changes losses
        changes = spec.dynamics.changes(
            experiment.topology, seed=spec.seed, scale=spec.scale, folder=experiment.source.parent
        )
    ahead = (change.loss for _, changed in islice(changes, LOOK_AHEAD) for change in changed.values())
    return any(loss is not None and loss.ratio for loss in (*(entry.loss for entry in spec.timeline), *ahead))


def _cuts(experiment: LoadedExperiment) -> bool:
    return any(entry.action != "link-set" for entry in experiment.spec.timeline)


def compute_seconds(compute: Compute, site: str, seed: int, rank: int, iteration: int) -> float:
    """The declared time of one worker's forward and backward pass, as the emulated workers draw it."""
    mean = compute.sites.get(site, compute.mean)
    if mean is None or mean.ns == 0:
        return 0.0
    return ComputeTime(mean_s=mean.seconds, cv=compute.cv).draw(seed, rank, iteration)
