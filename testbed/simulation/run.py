"""One experiment in the simulated world: the same file in, the same run directory out, in virtual time.

Workers are replaced by the times they take: an iteration computes for its declared time (drawn as the
emulated workers draw it; `real` counts as no time, since nothing is computed here), hands its gradients over,
and goes on when the last result is there. Everything in between is the agents' own code. Traces hold virtual
times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path

from agents.compute import ComputeTime
from agents.sync.spec import allreduce
from testbed.experiments.manifest import TRACE, FidelityRow, Manifest, SegmentStatus
from testbed.experiments.rundir import RunDirectory
from testbed.experiments.schema import Compute
from testbed.experiments.spec import LoadedExperiment, Segment
from testbed.report.measurements import LinkSample
from testbed.simulation.world import REALISTIC, SECOND, World, WorldOptions
from testbed.timeline import Step, steps
from topologies.errors import CannotHonourError, RunFailedError
from topologies.model import DirectedLink

Say = Callable[[str], None]
SAMPLE_NS = SECOND


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
    lossy = sum(link.loss.ratio > 0 for link in experiment.topology.directed)
    if lossy:
        reasons.append(f"the declared loss of {lossy} directed links is not simulated")
    if any(link.jitter.ns for link in experiment.topology.directed):
        reasons.append("declared jitter is not simulated")
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
        cuts = {entry.action for entry in experiment.spec.timeline} - {"link-set"}
        if cuts:
            raise CannotHonourError(
                f"the simulated world cannot cut links: {', '.join(sorted(cuts))} in the timeline",
                hint="run it in the emulated world, or leave them out",
            )
        self.world = World(experiment.topology, job=run.manifest.id, options=options)
        self.world.on_complete = self._completed
        self._ranks: list[list[int]] = [[] for _ in range(self.world.n)]
        for row in run.manifest.workers:
            self._ranks[experiment.topology.index(row.site)].append(row.rank)
        self._rows = run.manifest.workers
        self._traces = [StringIO() for _ in self._rows]
        self._segment: Segment | None = None
        self._sampled_bits = [0.0] * len(experiment.topology.directed)
        self._sampled_ns = 0
        # Of the iteration that each site is in:
        self._iteration = [0] * self.world.n
        self._start_ns = [0] * self.world.n
        self._ready_ns = [0] * len(self._rows)
        self._finished = 0
        self._late = False
        self._links = list(experiment.topology.directed)
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
            for row, trace in zip(self._rows, self._traces, strict=True):
                folder = self._run.worker(row.site, row.worker)
                folder.joinpath(TRACE).write_text(trace.getvalue(), encoding="utf-8")

    def _conduct(self, segment: Segment) -> None:
        world, clock = self.world, self.world.clock
        self._say(f"{segment.label}: {segment.iterations} iterations")
        plan = world.use(segment.scheduler, self._training.chunk_elements)
        self._run.set_plan(segment.label, plan.to_dict(self._experiment.topology.site_names))
        self._run.begin_segment(segment.label, clock.now_ns)
        self._segment, self._finished, self._late = segment, 0, False
        self._sampled_ns = clock.now_ns
        if self._experiment.spec.dynamics.replay == "segment":
            self._play(segment.seed)
        clock.after(SAMPLE_NS, self._tick)
        began = clock.now_ns
        status: SegmentStatus = "failed"
        try:
            for site in range(world.n):
                self._iteration[site] = 0
                self._begin_iteration(site)
            clock.run(until=lambda: self._finished == world.n or bool(world.failures) or self._late)
            self._check(segment)
            status = "completed"
        finally:
            self._sample()
            self._run.end_segment(segment.label, clock.now_ns, status)
            self._segment = None
        self._say(f"{segment.label}: {(clock.now_ns - began) / SECOND:.2f} s of virtual time")

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
                if step.links:
                    self._change(step.links.values())
                next_one()

        next_one()

    def _change(self, links: Iterable[DirectedLink]) -> None:
        now = self.world.clock.now_ns
        rows = []
        for link in links:
            self._links[link.index] = link
            self.world.network.set_rate(link.index, link.rate.bps)
            self.world.network.set_delay(link.index, link.delay.ns)
            rows.append(
                {
                    "src": link.src_name,
                    "dst": link.dst_name,
                    "rate_bps": link.rate.bps,
                    "delay_s": link.delay.seconds,
                    "loss_ratio": link.loss.ratio,
                    "state": "up",
                }
            )
        self._run.add_changes(now / SECOND, self._segment.label if self._segment else "", rows)

    def _rewind(self) -> None:
        """Every link as declared again, and nothing more of what was to come."""
        self._playing += 1
        declared = self._experiment.topology.directed
        for link in declared:
            if self._links[link.index] != link:
                self._links[link.index] = link
                self.world.network.set_rate(link.index, link.rate.bps)
                self.world.network.set_delay(link.index, link.delay.ns)

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
            self._ready_ns[rank] = clock.now_ns + round(seconds * SECOND)
        clock.at(max(self._ready_ns[rank] for rank in self._ranks[site]), begin)

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
        names = self._experiment.topology.site_names
        if world.failures:
            site, seq, cause = world.failures[0]
            raise RunFailedError(f"{segment.label}: collective {seq} failed at {names[site]}: {cause}")
        if self._finished < world.n:
            seq = world.oldest_open
            site = next(k for k in range(world.n) if world.records[seq].done_ns[k] < 0)
            missing = world.sites[site].waiting_for(seq)
            if self._late:
                raise RunFailedError(
                    f"{segment.label}: deadline of {self._training.deadline_s:g} s missed; {names[site]} "
                    f"still waited for {missing}",
                    hint="raise training.deadline_s, or scale the network up",
                )
            raise RunFailedError(f"{segment.label}: the simulated network came to rest; missing: {missing}")

    def _tick(self) -> None:
        if self._segment is None:
            return
        self._sample()
        world = self.world
        if world.oldest_open < len(world.records):
            ready = world.records[world.oldest_open].ready_ns
            waited = world.clock.now_ns - max(ready)
            self._late = min(ready) >= 0 and waited > self._training.deadline_s * SECOND
        # A network at rest must be seen to be at rest, so the sampling alone keeps nothing alive.
        if self.world.clock.pending:
            self.world.clock.after(SAMPLE_NS, self._tick)

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


def compute_seconds(compute: Compute, site: str, seed: int, rank: int, iteration: int) -> float:
    """The declared time of one worker's forward and backward pass, as the emulated workers draw it."""
    mean = compute.sites.get(site, compute.mean)
    if mean is None or mean.ns == 0:
        return 0.0
    return ComputeTime(mean_s=mean.seconds, cv=compute.cv).draw(seed, rank, iteration)
