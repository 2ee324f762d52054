"""The course of one trial: jobs, their collectives, and what goes wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from agents.chunks import Chunk
from agents.sync.actions import Complete, CoordinatorAction, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import Abort, ChunkMessage, Release, ToCoordinator, ToSite
from agents.sync.payload import ArrayPayload, GhostPayload, Payload
from agents.sync.site_machine import SiteMachine
from agents.sync.spec import item_size, site_mask
from testbed.simulation.clock import SECOND, VirtualClock
from testbed.simulation.trials.carriage import MS, Carriage
from testbed.simulation.trials.plans import PLANNERS, MeasuredPlans, Planner, RandomPlans
from testbed.simulation.trials.promises import (
    AHEAD,
    MOST_OPEN,
    MOST_POLICIES_AHEAD,
    MOST_POLICIES_WITHIN,
    NOTICE_NS,
    STOP_NS,
    Job,
    TrialFailed,
    check_complete,
    check_result,
    check_stopped,
)
from testbed.simulation.trials.random_protocol import contribution, random_spec

Fault = Literal["none", "duplicates", "resets", "lossy", "cut", "crash", "crashes", "coordinator"]
FAULTS: tuple[Fault, ...] = (
    "none",
    "duplicates",
    "resets",
    "lossy",
    "cut",
    "crash",
    "crashes",
    "coordinator",
)
"""What may go wrong in a trial:

duplicates   messages arrive twice
resets       connections break, and what was on them is sent again, perhaps more than that
lossy        messages and acknowledgements are lost and sent again
cut          a connection between two sites is lost for good
crash        a site crashes and comes back to a second job, while messages of the first are still under way
crashes      two sites crash at nearly the same time
coordinator  the coordinator crashes, and a new one opens a second job
"""
GOES_ON: tuple[Fault, ...] = ("none", "duplicates", "resets", "lossy")
COORDINATOR = -1

Mode = Callable[[CoordinatorMachine], list[CoordinatorAction]]
"""How policies come into force: what is asked of a new coordinator."""
MODES: dict[str, Mode] = {
    "barrier": lambda coordinator: [],
    "announced": lambda coordinator: coordinator.announce_ahead(AHEAD),
}


@dataclass(frozen=True)
class TrialReport:
    """What a trial did. `violation` is None when everything held."""

    seed: int
    fault: Fault
    planner: Planner
    sites: int
    collectives: int
    messages: int
    lost: int
    duplicates: int
    policies: int
    stopped: bool
    violation: str | None = None


def run_trial(
    seed: int, trace: Callable[[str], object] | None = None, *, mode: str = "barrier"
) -> TrialReport:
    """Run one trial. Never raises for what the protocol does; the violation is in the report."""
    trial = _Trial(seed, trace, MODES[mode])
    violation: str | None = None
    try:
        trial.run()
    except Exception as error:
        violation = f"{type(error).__name__}: {error}"
    return TrialReport(
        seed=seed,
        fault=trial.fault,
        planner=trial.planner,
        sites=trial.n,
        collectives=sum(len(job.specs) for job in trial.jobs),
        messages=trial.carriage.messages,
        lost=trial.carriage.lost,
        duplicates=sum(machine.duplicates for job in trial.jobs for machine in job.sites),
        policies=sum(len(job.policies) for job in trial.jobs),
        stopped=trial.fault not in GOES_ON,
        violation=violation,
    )


class _Trial:
    def __init__(self, seed: int, trace: Callable[[str], object] | None, mode: Mode) -> None:
        self.rng = random.Random(seed)
        self.trace = trace
        self.mode = mode
        self.fault: Fault = FAULTS[seed % len(FAULTS)]
        self.planner: Planner = PLANNERS[seed // len(FAULTS) % len(PLANNERS)]
        self.n = self.rng.randint(2, 7)
        self.names = [f"dc{k + 1}" for k in range(self.n)]
        self.clock = VirtualClock()
        self.carriage = Carriage(
            self.rng,
            self.clock,
            duplicate=0.2 if self.fault == "duplicates" else 0.0,
            lose=0.25 if self.fault == "lossy" else 0.0,
        )
        self.arrays = self.rng.random() < 0.3
        self.jobs: list[Job] = []
        self._plans: dict[str, RandomPlans | MeasuredPlans] = {}
        # How much slower some sites are than others: stragglers make early chunks and held ones.
        self._slow = [self.rng.choice((1, 1, 5)) for _ in range(self.n)]

    # ---- the course of a trial

    def run(self) -> None:
        job = self._open("first")
        self._start(job)
        if self.fault in GOES_ON:
            if self.fault == "resets":
                for _ in range(self.rng.randint(1, 12)):
                    self.clock.at(self.rng.randrange(400 * MS), self._reset_one)
            self.clock.run()
            check_complete(job)
            return
        at_ns = self.rng.randrange(300 * MS)
        victims, causes = self._harm(job, at_ns)
        stopped_by = at_ns + STOP_NS
        self.clock.run(until=lambda: self.clock.now_ns > stopped_by)
        check_stopped(job, victims, causes)
        # What crashed comes back, and a new job must not mind what is still on its way from the old one.
        again = self._open("second")
        self._start(again)
        self.clock.run()
        check_complete(again)

    def _open(self, name: str) -> Job:
        specs = [random_spec(self.rng, self.n) for _ in range(self.rng.randint(1, 6))]
        job = Job(
            name,
            specs,
            CoordinatorMachine(name, self.names, clock=lambda: self.clock.now_ns / SECOND),
            [SiteMachine(name, k, self.names) for k in range(self.n)],
            complete=[set() for _ in range(self.n)],
            failed=[{} for _ in range(self.n)],
        )
        self.jobs.append(job)
        if self.planner == "measured":
            self._plans[name] = MeasuredPlans(self.rng, self.clock, job, self._to_sites, self.carriage)
        else:
            within = self.planner == "within"
            if within:
                job.most_policies = MOST_POLICIES_WITHIN
            self._plans[name] = RandomPlans(self.rng, self.clock, job, self._to_sites, within=within)
        return job

    def _start(self, job: Job) -> None:
        self._to_sites(job, self.mode(job.coordinator))
        if self.mode is MODES["announced"]:
            job.most_policies = MOST_POLICIES_AHEAD
        self._plans[job.name].begin()
        for site in range(self.n):
            self.clock.after(self.rng.randrange(20 * MS), partial(self._begin_next, job, site))

    def _begin_next(self, job: Job, site: int) -> None:
        """Begin the next collective at a site, at random times and with at most three of them open there."""
        machine, rng = job.sites[site], self.rng
        if site in job.dead or machine.aborted is not None or machine.next_seq == len(job.specs):
            return
        if len(machine.in_flight) >= MOST_OPEN:
            job.full.add(site)
            return
        seq = machine.next_seq
        spec = job.specs[seq]
        source = self._source(job, seq, site)
        if rng.random() < 0.7:
            self._execute(job, site, machine.begin(seq, spec, source))
        else:
            self._execute(job, site, machine.begin(seq, spec))
            for part, what in enumerate(spec.parts):
                if site_mask(what.contributors, self.n) >> site & 1:
                    self.clock.after(
                        rng.randrange(30 * MS), partial(self._contribute, job, site, seq, part, source)
                    )
        self._begin_soon(job, site)

    def _begin_soon(self, job: Job, site: int) -> None:
        self.clock.after(self.rng.randrange(15 * MS) * self._slow[site], partial(self._begin_next, job, site))

    def _contribute(
        self, job: Job, site: int, seq: int, part: int, source: Callable[[Chunk], Payload]
    ) -> None:
        if site not in job.dead:
            self._execute(job, site, job.sites[site].contribute(seq, part, source))

    def _source(self, job: Job, seq: int, site: int) -> Callable[[Chunk], Payload]:
        spec = job.specs[seq]

        def give(chunk: Chunk) -> Payload:
            if self.arrays:
                return ArrayPayload(contribution(site, seq, chunk, spec.dtype))
            return GhostPayload.of(site, chunk.size * item_size(spec.dtype))

        return give

    # ---- faults

    def _reset_one(self) -> None:
        told = self.carriage.reset_one()
        if told is not None:
            self._note(told)

    def _harm(self, job: Job, at_ns: int) -> tuple[list[int], list[str]]:
        """Something that the job does not survive is due then: the victims, and the causes it may stop for."""
        rng, victim = self.rng, self.rng.randrange(self.n)
        if self.fault == "cut":
            peer = (victim + rng.randrange(1, self.n)) % self.n
            cause = f"{self.names[victim]} lost its connection to {self.names[peer]}"
            self.clock.at(at_ns, lambda: self._cut(job, victim, peer, cause))
            return [], [cause]
        if self.fault == "coordinator":
            self.clock.at(at_ns, lambda: self._crash_coordinator(job))
            return [], ["lost the coordinator: it crashed"]
        victims = [victim]
        if self.fault == "crashes" and self.n > 2:
            victims.append((victim + rng.randrange(1, self.n)) % self.n)
        for number, site in enumerate(victims):
            when = at_ns - number * rng.randrange(min(at_ns, 20 * MS) + 1)
            self.clock.at(when, partial(self._crash, job, site))
        return victims, [f"site {self.names[site]} was lost: it crashed" for site in victims]

    def _crash(self, job: Job, victim: int) -> None:
        self._note(f"{self.names[victim]} crashes")
        job.dead.add(victim)
        # What its kernel had not sent is gone; what it had sent arrives.
        self.carriage.end(lambda src, dst: src == victim, 0.5)
        delay = self.rng.randrange(NOTICE_NS)
        self.clock.after(delay, lambda: self._to_sites(job, job.coordinator.site_lost(victim, "it crashed")))

    def _crash_coordinator(self, job: Job) -> None:
        self._note("the coordinator crashes")
        job.coordinator_dead = True
        self.carriage.end(lambda src, dst: src == COORDINATOR, 0.5)
        for site, name in enumerate(self.names):
            lost = Abort(job.name, f"the agent of {name} lost the coordinator: it crashed")
            self.clock.after(self.rng.randrange(NOTICE_NS), partial(self._at_site, job, site, lost))

    def _cut(self, job: Job, victim: int, peer: int, cause: str) -> None:
        self._note(cause)
        self.carriage.end(lambda src, dst: (src, dst) == (victim, peer))
        self._execute(job, victim, job.sites[victim].abort(cause))

    # ---- executing actions

    def _execute(self, job: Job, site: int, actions: list[SiteAction]) -> None:
        for action in actions:
            match action:
                case Send(dst, message, path, _):
                    self.carriage.put((job.name, site, dst, path), partial(self._at_site, job, dst, message))
                case SendControl(control):
                    key = (job.name, site, COORDINATOR, 0)
                    self.carriage.put(key, partial(self._at_coordinator, job, control))
                case Deliver(seq, chunk, payload):
                    check_result(job, site, seq, chunk, payload)
                case Complete(seq):
                    self._note(f"{job.name}: collective {seq} complete at {self.names[site]}")
                    if seq in job.complete[site]:
                        raise TrialFailed(f"collective {seq} completed twice at {self.names[site]}")
                    job.complete[site].add(seq)
                    if site in job.full:
                        job.full.discard(site)
                        self._begin_soon(job, site)
                case Failed(seq, cause):
                    job.failed[site][seq] = cause

    def _at_site(self, job: Job, site: int, message: ChunkMessage | ToSite) -> None:
        if site in job.dead:
            return
        if isinstance(message, Release):
            known = job.versions.setdefault(message.seq, message.version)
            if known != message.version:
                raise TrialFailed(f"collective {message.seq} is released under {known} and {message.version}")
        self._note(f"{job.name}: {self.names[site]} gets {message}")
        if isinstance(message, ChunkMessage) and isinstance(message.payload, ArrayPayload):
            # A receiver owns what it gets, as the transport promises; duplicates would share it here.
            message = _with_copy(message)
        self._execute(job, site, job.sites[site].on_message(message))

    def _at_coordinator(self, job: Job, message: ToCoordinator) -> None:
        if job.coordinator_dead:
            return
        self._note(f"{job.name}: the coordinator gets {message}")
        self._to_sites(job, job.coordinator.on_message(message))

    def _to_sites(self, job: Job, actions: list[CoordinatorAction]) -> None:
        if job.coordinator_dead:
            return
        for action in actions:
            key = (job.name, COORDINATOR, action.dst, 0)
            self.carriage.put(key, partial(self._at_site, job, action.dst, action.message))
        if job.coordinator.version:
            job.policies.add(job.coordinator.version)
        deadline = job.coordinator.next_deadline
        if deadline is not None:
            self.clock.at(math.ceil(deadline * SECOND), partial(self._on_time, job, deadline))
        if job.coordinator.next_seq > job.planned:
            # A new plan for every collective.
            job.planned = job.coordinator.next_seq
            self._plans[job.name].released()

    def _on_time(self, job: Job, deadline: float) -> None:
        if not job.coordinator_dead and job.coordinator.next_deadline == deadline:
            self._to_sites(job, job.coordinator.on_time())

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.clock.now_ns / MS:9.3f} ms  {text}")


def _with_copy(message: ChunkMessage) -> ChunkMessage:
    assert isinstance(message.payload, ArrayPayload)
    payload = ArrayPayload(message.payload.array.copy(), owned=True)
    return ChunkMessage(
        message.job,
        message.seq,
        message.version,
        message.part,
        message.chunk,
        message.direction,
        message.src,
        message.tree,
        payload,
    )
