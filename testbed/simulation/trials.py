"""Trials of the protocol: the agents' state machines under random delays, faults and changes of policy.

One trial is a function of its seed. It draws a number of sites, a list of collectives of every kind, a new
plan of random trees for every collective, and a fault; it lets every message take a random time (in order on
one connection, in any order between connections); and it checks what must always hold: every site that wants
a result gets it exactly once and right, each contributor counted exactly once, or the job stops everywhere
with a named cause within a stated time. Nothing may hang: a trial whose events run out with work left has
failed. After a crash or a cut, a second job runs while messages of the first still arrive.

    python -m testbed.simulation.trials --first 0 --count 10000
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from agents.chunks import Chunk
from agents.sync.actions import Complete, CoordinatorAction, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import ChunkMessage, Release, ToCoordinator, ToSite
from agents.sync.payload import ArrayPayload, GhostPayload, Payload
from agents.sync.site_machine import SiteMachine
from agents.sync.spec import CollectiveSpec, item_size, site_mask
from testbed.simulation.clock import VirtualClock
from testbed.simulation.random_protocol import contribution, expected_result, random_plan, random_spec
from topologies.errors import RunFailedError, StormbedError

MS = 1_000_000
SECOND = 1000 * MS
Fault = Literal["none", "duplicates", "resets", "cut", "crash"]
FAULTS: tuple[Fault, ...] = ("none", "duplicates", "resets", "cut", "crash")
# From the fault to the last survivor's stop: the coordinator notices, then tells everyone.
NOTICE_NS = 50 * MS
MOST_DELAY_NS = 40 * MS
STOP_NS = NOTICE_NS + 2 * MOST_DELAY_NS
COORDINATOR = -1
MOST_OPEN = 3
# Three collectives may be open at a site and each has a policy of its own; older ones must have been dropped.
MOST_POLICIES = 6


class TrialFailed(StormbedError):
    """The protocol broke its promise under this seed."""


@dataclass(frozen=True)
class TrialReport:
    """What a trial did. `violation` is None when everything held."""

    seed: int
    fault: Fault
    sites: int
    collectives: int
    messages: int
    duplicates: int
    stopped: bool
    violation: str | None = None


@dataclass(eq=False)
class _Channel:
    """One connection: in order, each message after a random delay. A reset sends again what may be lost."""

    arrival_ns: int = 0
    epoch: int = 0
    delivered: int = 0
    log: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class _Job:
    """One job's machines and what came out of them."""

    name: str
    specs: list[CollectiveSpec]
    coordinator: CoordinatorMachine
    sites: list[SiteMachine]
    got: dict[tuple[int, int], dict[tuple[int, int], int]] = field(default_factory=dict)
    complete: list[set[int]] = field(default_factory=list)
    failed: list[dict[int, str]] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    full: set[int] = field(default_factory=set)


def run_trial(seed: int, trace: Callable[[str], object] | None = None) -> TrialReport:
    """Run one trial. Never raises for what the protocol does; the violation is in the report."""
    trial = _Trial(seed, trace)
    violation: str | None = None
    try:
        trial.run()
    except Exception as error:
        violation = f"{type(error).__name__}: {error}"
    duplicates = sum(machine.duplicates for job in trial.jobs for machine in job.sites)
    return TrialReport(
        seed=seed,
        fault=trial.fault,
        sites=trial.n,
        collectives=sum(len(job.specs) for job in trial.jobs),
        messages=trial.messages,
        duplicates=duplicates,
        stopped=trial.fault in ("cut", "crash"),
        violation=violation,
    )


class _Trial:
    def __init__(self, seed: int, trace: Callable[[str], object] | None) -> None:
        self.rng = random.Random(seed)
        self.trace = trace
        self.fault: Fault = FAULTS[seed % len(FAULTS)]
        self.n = self.rng.randint(2, 7)
        self.names = [f"dc{k + 1}" for k in range(self.n)]
        self.clock = VirtualClock()
        self.messages = 0
        self.arrays = self.rng.random() < 0.3
        self.jobs: list[_Job] = []
        self._channels: dict[tuple[str, int, int, int], _Channel] = {}
        # How much slower some sites are than others: stragglers make early chunks and held ones.
        self._slow = [self.rng.choice((1, 1, 5)) for _ in range(self.n)]

    # ---- the course of a trial

    def run(self) -> None:
        rng = self.rng
        job = self._open("first")
        self._start(job)
        if self.fault in ("none", "duplicates", "resets"):
            if self.fault == "resets":
                for _ in range(rng.randint(1, 12)):
                    self.clock.at(rng.randrange(400 * MS), self._reset_one)
            self.clock.run()
            self._check_complete(job)
            return
        at_ns, victim = rng.randrange(300 * MS), rng.randrange(self.n)
        cause = f"site {self.names[victim]} was lost: it crashed"
        if self.fault == "crash":
            self.clock.at(at_ns, lambda: self._crash(job, victim))
        else:
            peer = (victim + rng.randrange(1, self.n)) % self.n
            cause = f"{self.names[victim]} lost its connection to {self.names[peer]}"
            self.clock.at(at_ns, lambda: self._cut(job, victim, peer, cause))
        stopped_by = at_ns + STOP_NS
        self.clock.run(until=lambda: self.clock.now_ns > stopped_by)
        self._check_stopped(job, victim if self.fault == "crash" else None, cause)
        # The site comes back, and a new job must not mind what is still on its way from the old one.
        again = self._open("second")
        self._start(again)
        self.clock.run()
        self._check_complete(again)

    def _open(self, name: str) -> _Job:
        specs = [random_spec(self.rng, self.n) for _ in range(self.rng.randint(1, 6))]
        job = _Job(
            name,
            specs,
            CoordinatorMachine(name, self.names, clock=lambda: self.clock.now_ns / SECOND),
            [SiteMachine(name, k, self.names) for k in range(self.n)],
            complete=[set() for _ in range(self.n)],
            failed=[{} for _ in range(self.n)],
        )
        self.jobs.append(job)
        return job

    def _start(self, job: _Job) -> None:
        rng = self.rng
        self.clock.after(rng.randrange(20 * MS), lambda: self._new_plan(job))
        for site in range(self.n):
            self.clock.after(rng.randrange(20 * MS), partial(self._begin_next, job, site))

    def _new_plan(self, job: _Job) -> None:
        if job.coordinator.aborted is not None:
            return
        paths = {(u, v): self.rng.randrange(3) for u in range(self.n) for v in range(self.n) if u != v}
        plan = random_plan(self.rng, self.n)
        self._to_sites(job, job.coordinator.set_plan(plan, self.rng.randint(1, 40), paths))

    def _begin_next(self, job: _Job, site: int) -> None:
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

    def _begin_soon(self, job: _Job, site: int) -> None:
        self.clock.after(self.rng.randrange(15 * MS) * self._slow[site], partial(self._begin_next, job, site))

    def _contribute(
        self, job: _Job, site: int, seq: int, part: int, source: Callable[[Chunk], Payload]
    ) -> None:
        if site not in job.dead:
            self._execute(job, site, job.sites[site].contribute(seq, part, source))

    # ---- faults

    def _reset_one(self) -> None:
        """A connection breaks and comes back: what had not arrived is sent again, perhaps more than that."""
        if not self._channels:
            return
        key = self.rng.choice(sorted(self._channels))
        channel = self._channels[key]
        channel.epoch += 1
        again = channel.log[max(0, channel.delivered - self.rng.randrange(4)) :]
        channel.log = channel.log[: channel.delivered]
        channel.arrival_ns = self.clock.now_ns + self.rng.randrange(60 * MS)
        self._note(f"connection {key} resets, {len(again)} messages are sent again")
        for deliver in again:
            self._put(channel, deliver)

    def _crash(self, job: _Job, victim: int) -> None:
        self._note(f"{self.names[victim]} crashes")
        job.dead.add(victim)
        for (_, src, _, _), channel in sorted(self._channels.items(), key=lambda item: item[0]):
            # What its kernel had not sent is gone; what it had sent arrives.
            if src == victim and self.rng.random() < 0.5:
                channel.epoch += 1
        delay = self.rng.randrange(NOTICE_NS)
        self.clock.after(delay, lambda: self._to_sites(job, job.coordinator.site_lost(victim, "it crashed")))

    def _cut(self, job: _Job, victim: int, peer: int, cause: str) -> None:
        self._note(cause)
        for (_, src, dst, _), channel in self._channels.items():
            if (src, dst) == (victim, peer):
                channel.epoch += 1
        self._execute(job, victim, job.sites[victim].abort(cause))

    # ---- carrying messages

    def _channel(self, job: _Job, src: int, dst: int, path: int) -> _Channel:
        return self._channels.setdefault((job.name, src, dst, path), _Channel())

    def _put(self, channel: _Channel, deliver: Callable[[], None]) -> None:
        self.messages += 1
        channel.log.append(deliver)
        delay = self.rng.randrange(MOST_DELAY_NS // 20 if self.rng.random() < 0.8 else MOST_DELAY_NS)
        channel.arrival_ns = max(
            channel.arrival_ns, min(self.clock.now_ns + delay, self.clock.now_ns + MOST_DELAY_NS)
        )
        epoch = channel.epoch

        def arrive() -> None:
            if epoch == channel.epoch:
                channel.delivered += 1
                deliver()

        self.clock.at(channel.arrival_ns, arrive)
        if self.fault == "duplicates" and self.rng.random() < 0.2:
            self.clock.at(channel.arrival_ns + self.rng.randrange(100 * MS), deliver)

    def _execute(self, job: _Job, site: int, actions: list[SiteAction]) -> None:
        for action in actions:
            match action:
                case Send(dst, message, path, _):
                    self._put(
                        self._channel(job, site, dst, path),
                        partial(self._at_site, job, dst, message),
                    )
                case SendControl(control):
                    self._put(
                        self._channel(job, site, COORDINATOR, 0),
                        partial(self._at_coordinator, job, control),
                    )
                case Deliver(seq, chunk, payload):
                    self._check_result(job, site, seq, chunk, payload)
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

    def _at_site(self, job: _Job, site: int, message: ChunkMessage | ToSite) -> None:
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

    def _at_coordinator(self, job: _Job, message: ToCoordinator) -> None:
        self._note(f"{job.name}: the coordinator gets {message}")
        self._to_sites(job, job.coordinator.on_message(message))

    def _to_sites(self, job: _Job, actions: list[CoordinatorAction]) -> None:
        for action in actions:
            self._put(
                self._channel(job, COORDINATOR, action.dst, 0),
                partial(self._at_site, job, action.dst, action.message),
            )
        deadline = job.coordinator.next_deadline
        if deadline is not None:
            self.clock.at(math.ceil(deadline * SECOND), partial(self._on_time, job, deadline))
        if any(isinstance(action.message, Release) for action in actions):
            # A new plan for every collective, and sometimes two of which only the last may count.
            for _ in range(self.rng.choice((1, 1, 2))):
                self._new_plan(job)

    def _on_time(self, job: _Job, deadline: float) -> None:
        if job.coordinator.next_deadline == deadline:
            self._to_sites(job, job.coordinator.on_time())

    # ---- what must hold

    def _source(self, job: _Job, seq: int, site: int) -> Callable[[Chunk], Payload]:
        spec = job.specs[seq]

        def give(chunk: Chunk) -> Payload:
            if self.arrays:
                return ArrayPayload(contribution(site, seq, chunk, spec.dtype))
            return GhostPayload.of(site, chunk.size * item_size(spec.dtype))

        return give

    def _check_result(self, job: _Job, site: int, seq: int, chunk: Chunk, payload: Payload) -> None:
        where = f"chunk {chunk.index} of collective {seq} at {self.names[site]}"
        spec = job.specs[seq]
        part = spec.parts[chunk.part]
        if not site_mask(part.targets, self.n) >> site & 1:
            raise TrialFailed(f"{where}: delivered to a site that does not want it")
        got = job.got.setdefault((site, seq), {})
        if (chunk.part, chunk.offset) in got:
            raise TrialFailed(f"{where}: delivered twice")
        got[chunk.part, chunk.offset] = chunk.size
        contributors = [k for k in range(self.n) if site_mask(part.contributors, self.n) >> k & 1]
        if isinstance(payload, GhostPayload):
            payload.assert_exact(contributors)
            return
        assert isinstance(payload, ArrayPayload)
        expected = expected_result(contributors, seq, chunk, spec)
        if payload.array.dtype != expected.dtype or not np.array_equal(payload.array, expected):
            raise TrialFailed(f"{where}: the result is not the {spec.op or 'copy'} of its contributions")

    def _check_complete(self, job: _Job) -> None:
        for site, machine in enumerate(job.sites):
            name = self.names[site]
            for seq, spec in enumerate(job.specs):
                if seq not in job.complete[site]:
                    raise TrialFailed(f"hangs: {name} waits for {machine.waiting_for(seq)}")
                got = job.got.get((site, seq), {})
                for number, part in enumerate(spec.parts):
                    wanted = part.elements if site_mask(part.targets, self.n) >> site & 1 else 0
                    arrived = sum(size for (p, _), size in got.items() if p == number)
                    if arrived != wanted:
                        raise TrialFailed(
                            f"{name} got {arrived} of {wanted} elements of part {number} of {seq}"
                        )
            if machine.in_flight or machine.held:
                raise TrialFailed(
                    f"{name} still keeps {machine.in_flight} open and {machine.held} chunks held"
                )
            if len(machine.installed) > MOST_POLICIES:
                raise TrialFailed(f"{name} keeps the policies {machine.installed}")
            if machine.aborted is not None:
                raise TrialFailed(f"{name} stopped although nothing failed: {machine.aborted}")

    def _check_stopped(self, job: _Job, victim: int | None, cause: str) -> None:
        for site, machine in enumerate(job.sites):
            if site == victim:
                continue
            if machine.aborted is None:
                raise TrialFailed(f"{self.names[site]} has not stopped {STOP_NS // MS} ms after the fault")
            if cause not in machine.aborted:
                raise TrialFailed(f"{self.names[site]} stopped for {machine.aborted!r}, not for {cause!r}")
            begun = set(range(machine.next_seq))
            if begun != job.complete[site] | job.failed[site].keys():
                raise TrialFailed(f"{self.names[site]} neither completed nor failed some of {sorted(begun)}")

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


def main() -> int:
    """Run trials from the command line; the exit code is 5 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m testbed.simulation.trials", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--trace", action="store_true", help="print every event")
    given = parser.parse_args()
    say = sys.stdout.write
    reports: list[TrialReport] = []
    for seed in range(given.first, given.first + given.count):
        report = run_trial(seed, (lambda text: say(text + "\n")) if given.trace else None)
        reports.append(report)
        if report.violation is not None:
            say(f"seed {seed} ({report.fault}, {report.sites} sites) fails: {report.violation}\n")
            say(f"  replay: python -m testbed.simulation.trials --first {seed} --count 1 --trace\n")
    failed = sum(report.violation is not None for report in reports)
    say(
        f"{len(reports)} trials, {sum(r.collectives for r in reports)} collectives, "
        f"{sum(r.messages for r in reports)} messages, "
        f"{sum(r.duplicates for r in reports)} duplicates dropped; "
        f"{sum(r.stopped for r in reports)} stopped by a fault, {failed} failed\n"
    )
    return RunFailedError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
