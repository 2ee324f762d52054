"""What must hold in every trial, whatever happens (docs/architecture.md, section 5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from agents.chunks import Chunk
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.payload import ArrayPayload, GhostPayload, Payload
from agents.sync.site_machine import SiteMachine
from agents.sync.spec import CollectiveSpec, site_mask
from testbed.simulation.trials.carriage import MOST_DELAY_NS, MS
from testbed.simulation.trials.random_protocol import expected_result
from topologies.errors import StormbedError

# From the fault to the last survivor's stop: the coordinator notices, then tells everyone.
NOTICE_NS = 50 * MS
STOP_NS = NOTICE_NS + 2 * MOST_DELAY_NS
MOST_OPEN = 3
# Three collectives may be open at a site and each has a policy of its own; older ones must have been dropped.
MOST_POLICIES = 2 * MOST_OPEN
# Announced ahead: besides, one for each collective that is settled and not begun.
AHEAD = 2
MOST_POLICIES_AHEAD = MOST_POLICIES + AHEAD
# With a new plan inside, or two, for each of them.
MOST_POLICIES_WITHIN = 4 * MOST_OPEN


class TrialFailed(StormbedError):
    """The protocol broke its promise under this seed."""


@dataclass
class Job:
    """One job's machines and what came out of them.

    got       (site, collective) -> (part, offset) of what was delivered -> its size
    complete  per site, the collectives that are
    failed    per site, the others that the machine gave up, and why
    versions  collective -> the policy version of its release
    full      sites with as many collectives open as may be
    planned   plans were given for the releases below this
    most_policies  that a site may keep to the end
    """

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
    planned: int = 0
    most_policies: int = MOST_POLICIES
    policies: set[int] = field(default_factory=set)
    coordinator_dead: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.coordinator.site_names

    @property
    def n(self) -> int:
        return len(self.sites)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do, or nothing will be done."""
        count = len(self.specs)
        return all(
            site.aborted is not None or k in self.dead or len(self.complete[k]) == count
            for k, site in enumerate(self.sites)
        )


def check_result(job: Job, site: int, seq: int, chunk: Chunk, payload: Payload) -> None:
    """A result is wanted, new and right."""
    where = f"chunk {chunk.index} of collective {seq} at {job.names[site]}"
    spec = job.specs[seq]
    part = spec.parts[chunk.part]
    if not site_mask(part.targets, job.n) >> site & 1:
        raise TrialFailed(f"{where}: delivered to a site that does not want it")
    got = job.got.setdefault((site, seq), {})
    if (chunk.part, chunk.offset) in got:
        raise TrialFailed(f"{where}: delivered twice")
    got[chunk.part, chunk.offset] = chunk.size
    contributors = [k for k in range(job.n) if site_mask(part.contributors, job.n) >> k & 1]
    if isinstance(payload, GhostPayload):
        payload.assert_exact(contributors)
        return
    assert isinstance(payload, ArrayPayload)
    expected = expected_result(contributors, seq, chunk, spec)
    if payload.array.dtype != expected.dtype or not np.array_equal(payload.array, expected):
        raise TrialFailed(f"{where}: the result is not the {spec.op or 'copy'} of its contributions")


def check_complete(job: Job) -> None:
    """Every collective is complete at every site, and nothing is left of any."""
    for site, machine in enumerate(job.sites):
        name = job.names[site]
        for seq, spec in enumerate(job.specs):
            if seq not in job.complete[site]:
                raise TrialFailed(f"hangs: {name} waits for {machine.waiting_for(seq)}")
            got = job.got.get((site, seq), {})
            for number, part in enumerate(spec.parts):
                wanted = part.elements if site_mask(part.targets, job.n) >> site & 1 else 0
                arrived = sum(size for (p, _), size in got.items() if p == number)
                if arrived != wanted:
                    raise TrialFailed(f"{name} got {arrived} of {wanted} elements of part {number} of {seq}")
        if machine.in_flight or machine.held:
            raise TrialFailed(f"{name} still keeps {machine.in_flight} open and {machine.held} chunks held")
        if len(machine.installed) > job.most_policies:
            raise TrialFailed(f"{name} keeps the policies {machine.installed}")
        if machine.aborted is not None:
            raise TrialFailed(f"{name} stopped although nothing failed: {machine.aborted}")


def check_stopped(job: Job, victims: Collection[int], causes: Sequence[str]) -> None:
    """Every site but the victims has stopped, for one of these causes, the same at all of them."""
    for site, machine in enumerate(job.sites):
        if site in victims:
            continue
        if machine.aborted is None:
            raise TrialFailed(f"{job.names[site]} has not stopped {STOP_NS // MS} ms after the fault")
        if not any(cause in machine.aborted for cause in causes):
            raise TrialFailed(f"{job.names[site]} stopped for {machine.aborted!r}, not for {causes[0]!r}")
        begun = set(range(machine.next_seq))
        if begun != job.complete[site] | job.failed[site].keys():
            raise TrialFailed(f"{job.names[site]} neither completed nor failed some of {sorted(begun)}")
