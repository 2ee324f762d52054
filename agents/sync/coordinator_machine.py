"""The coordinator's side of the protocol, as a pure state machine: the barrier and the issue of policies.

With the barrier: a collective is released when every site is ready for it; releases go out in order of the
collectives. A new plan takes effect with the next release and not earlier, so no collective mixes two plans;
of several between two releases the last one wins. The release that first uses a policy carries it.

Without it (`announce_ahead`): the policies of the `ahead` collectives after the last one for which every site
was ready are settled, and the sites begin these on their own. A new plan is announced at once and holds from
the first collective that is not settled. So nobody waits for a message while answers come back in less time
than `ahead` collectives take, and no site is more than `ahead` collectives before the slowest. Nothing relies
on time: what is not settled is not begun. Plans that decide per transfer keep the barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agents.planning.base import Plan
from agents.sync.actions import CoordinatorAction, SendToSite, Waiting
from agents.sync.decisions import Log
from agents.sync.issued import IssuedPolicies, Switch
from agents.sync.messages import (
    Abort,
    Announce,
    PlanAck,
    ProtocolError,
    Ready,
    Release,
    SwitchMessage,
    ToCoordinator,
    TransferMessage,
    disagreement,
)
from agents.sync.policy import Policy
from agents.sync.transfer_coordinator import Clock, TransferCoordinator
from topologies.errors import CannotHonourError, RunFailedError, UsageError


class CoordinatorMachine:
    """Barrier and policies of one job over the given sites.

    next_seq     the first collective that is not released, or (announced) for which not all sites are ready
    settled      every collective below this begins at the sites without a release
    aborted      the cause, once the job was stopped
    transfers    under a policy that decides per transfer: what decides them, else None
    switched     the latest change inside a collective: (version, collective, first chunk), None before

    clock        seconds that only grow; needed by such policies alone, for leases: call `on_time` when
                 `next_deadline` comes
    on_decision  is given the records of what they decide (`agents.sync.decisions`)
    """

    def __init__(self, job: str, site_names: Sequence[str], clock: Clock | None = None) -> None:
        self.job = job
        self.transfers: TransferCoordinator | None = None
        self.on_decision: Log | None = None
        self._clock = clock
        self.site_names = tuple(site_names)
        self.next_seq = 0
        self.settled = 0
        self.aborted: str | None = None
        self.switched: tuple[int, int, int] | None = None
        self._ahead = 0
        self._announced = 0
        n = len(self.site_names)
        self._ready: dict[int, dict[int, Ready]] = {}
        self._ready_below = [0] * n
        self._completed_below = [0] * n
        self._issued = IssuedPolicies(n)
        self._pending: Policy | None = None
        self._switch: Switch | None = None
        self._switches = 0

    # ---- inputs

    def set_plan(
        self, plan: Plan, chunk_elements: int, hop_paths: Mapping[tuple[int, int], int] | None = None
    ) -> list[CoordinatorAction]:
        """Use this plan from the next release on. A plan equal to the current one changes nothing.

        Returns actions because the first plan releases what waited for one; none when the job has stopped.
        """
        if self.aborted is not None:
            return []
        if plan.n_sites != len(self.site_names):
            raise UsageError(
                f"a plan for {plan.n_sites} sites, but job {self.job} has {len(self.site_names)}"
            )
        if chunk_elements < 1:
            raise UsageError(f"a chunk of {chunk_elements} elements is impossible", hint="use at least 1")
        if plan.transfers is not None and (self._clock is None or plan.transfers.rule is None):
            raise CannotHonourError(
                f"{plan.scheduler} decides per transfer, which this coordinator of job {self.job} cannot",
                hint="it needs a clock, and the plan its rule",
            )
        policy = Policy(self.version + 1, self._first_free, plan, chunk_elements, dict(hop_paths or {}))
        current = self._issued.current
        same = current is not None and (plan, chunk_elements, policy.hop_paths) == (
            current.plan,
            current.chunk_elements,
            current.hop_paths,
        )
        self._pending = None if same and current and current.from_seq <= self._first_free else policy
        return self._announce_pending() + self._release_what_is_ready()

    def announce_ahead(self, ahead: int) -> list[CoordinatorAction]:
        """Settle so many collectives ahead of the slowest site; 0: the barrier again, from what is not settled on."""
        self._ahead = max(0, ahead)
        return self._announce_pending() + self._release_what_is_ready()

    def settle_anew(self) -> list[CoordinatorAction]:
        """Nothing is settled that has not begun, and the barrier again; only for sites at rest, who hear of it
        before they begin another collective."""
        if set(self._ready_below) != {self.next_seq}:
            return []
        self._ahead = 0
        if (current := self._issued.current) is None or self.settled <= self.next_seq:
            return []
        self.settled = self.next_seq
        if current.from_seq > self.next_seq:
            self._pending = replace(current, version=self.version + 1, from_seq=self.next_seq)
        return self._announce(None)

    def replan_within(
        self,
        seq: int,
        plan: Plan,
        chunk_elements: int,
        hop_paths: Mapping[tuple[int, int], int] | None = None,
    ) -> list[CoordinatorAction]:
        """Use this plan for what no site has begun of collective `seq`, and from then on.

        The sites are asked from which chunk on they have begun nothing; the largest answer is where the new
        plan begins, so nobody waits. Where nothing is left to change, policies are announced ahead, or
        transfers are decided one by one, the plan holds as with `set_plan`. Of several the last wins.
        """
        if self.aborted is not None:
            return []
        fixed = plan.transfers or self.transfers or self._ahead or self.settled > self.next_seq
        if fixed or not min(self._completed_below) <= seq < self.next_seq:
            return self.set_plan(plan, chunk_elements, hop_paths)
        wanted = Policy(0, self.next_seq, plan, chunk_elements, dict(hop_paths or {}))
        if self._switch is not None:
            self._switch.policy = wanted
            return []
        self._switches += 1
        self._switch = Switch(seq, self._switches, wanted)
        return [
            SendToSite(site, SwitchMessage(self.job, site, seq, "ask", self._switches))
            for site in range(len(self.site_names))
        ]

    def on_message(self, message: ToCoordinator) -> list[CoordinatorAction]:
        """A message from a site. ProtocolError as in `SiteMachine`: then call `abort(str(error))`."""
        if self.aborted is not None:
            return []
        if message.job != self.job:
            raise ProtocolError(f"a message of job {message.job} reached the coordinator of job {self.job}")
        if isinstance(message, Ready):
            return self._on_ready(message)
        if isinstance(message, PlanAck):
            self._on_ack(message)
            return []
        if isinstance(message, SwitchMessage):
            return self._on_promise(message)
        if isinstance(message, TransferMessage):
            self._checked_site(message.site)
            if message.seq < min(self._completed_below):
                return []  # repeated: every site has this collective behind it
            transfers = self._deciding(message)
            return self._orders(lambda: transfers.on_message(message))
        return self._stop(message.cause, without=message.site)

    def site_lost(self, site: int, why: str) -> list[CoordinatorAction]:
        """The connection to a site is gone: the job stops at all others with this as its cause."""
        if self.aborted is not None:
            return []
        return self._stop(f"site {self.site_names[site]} was lost: {why}", without=site)

    def abort(self, cause: str) -> list[CoordinatorAction]:
        """Stop the job at all sites."""
        return [] if self.aborted is not None else self._stop(cause, without=None)

    def on_time(self) -> list[CoordinatorAction]:
        """Leases of transfers that have ended by now; the job stops when one cannot be renewed."""
        actions: list[CoordinatorAction] = []
        for transfers in self._issued.all_deciding:
            if self.aborted is None:
                actions += self._orders(transfers.on_time)
        return actions

    @property
    def next_deadline(self) -> float | None:
        """When `on_time` has something to do, on the clock that was given; None while it has not."""
        if self.aborted is not None:
            return None
        ends = (transfers.next_deadline for transfers in self._issued.all_deciding)
        return min((end for end in ends if end is not None), default=None)

    # ---- introspection

    @property
    def version(self) -> int:
        """The policy version of the latest release; 0 before the first."""
        return self._issued.version

    @property
    def policy(self) -> Policy | None:
        """Of the latest release, or the latest that was announced."""
        return self._issued.current

    @property
    def _first_free(self) -> int:
        """The first collective that a new policy may still hold for."""
        return max(self.next_seq, self.settled)

    @property
    def retained(self) -> tuple[int, ...]:
        """The policy versions that some site may still need."""
        return tuple(sorted(self._issued.retained))

    def acked(self, version: int) -> frozenset[int]:
        """The sites that have installed a retained policy version."""
        return self._issued.acked(version)

    def waiting_for(self, seq: int) -> Waiting:
        """What holds back the release of collective `seq`."""
        if seq < self.next_seq:
            transfers = self._issued.deciding(seq)
            if transfers is not None and seq >= min(self._completed_below):
                return transfers.waiting_for(seq)
            return Waiting(f"nothing: collective {seq} of job {self.job} is released")
        late = tuple(k for k in range(len(self.site_names)) if self._ready_below[k] <= seq)
        if late:
            return Waiting(f"{self._names(late)} to be ready for collective {seq} of job {self.job}", late)
        return Waiting(f"the first plan of job {self.job}: all sites are ready for collective {seq}")

    # ---- ready and release

    def _on_ready(self, ready: Ready) -> list[CoordinatorAction]:
        site, seq = self._checked_site(ready.site), ready.seq
        if seq < self._ready_below[site]:
            return []
        if seq != self._ready_below[site]:
            raise ProtocolError(
                f"{self.site_names[site]} is ready for collective {seq}, "
                f"but its next one is {self._ready_below[site]}"
            )
        self._ready_below[site] = seq + 1
        self._completed_below[site] = max(self._completed_below[site], ready.completed)
        gathered = self._ready.setdefault(seq, {})
        gathered[site] = ready
        if len({r.digest for r in gathered.values()}) > 1:
            return self._stop(disagreement(self.job, self.site_names, seq, gathered), without=None)
        return self._release_what_is_ready()

    def _release_what_is_ready(self) -> list[CoordinatorAction]:
        actions: list[CoordinatorAction] = []
        while min(self._ready_below) > self.next_seq and (self._pending or self._issued.current):
            seq = self.next_seq
            if seq >= self.settled and self._announces(self._pending or self._issued.current):
                break  # settled below, all at once
            self.next_seq = seq + 1
            del self._ready[seq]
            if seq < self.settled:
                continue
            fresh = None if self._pending is None else replace(self._pending, from_seq=seq)
            if fresh is not None:
                self._adopt(fresh)
            self._retire()
            release = Release(self.job, seq, self.version, fresh, self._issued.retired_below)
            actions += self._to_all(release)
        return actions + self._settle()

    def _adopt(self, fresh: Policy) -> None:
        self._pending = None
        self.transfers = self._decides(fresh)
        self._issued.issue(fresh, self.transfers)

    def _announces(self, policy: Policy | None) -> bool:
        return self._ahead > 0 and policy is not None and policy.plan.transfers is None

    def _announce_pending(self) -> list[CoordinatorAction]:
        """A new plan without barrier: every site gets it before anything that it holds for is settled."""
        fresh = self._pending
        if fresh is None or not self._announces(fresh):
            return []
        self._adopt(fresh)
        self._retire()
        return self._announce(fresh)

    def _settle(self) -> list[CoordinatorAction]:
        below = max(self.next_seq, min(self._ready_below)) + self._ahead
        if not self._announces(self._pending or self._issued.current) or below <= self.settled:
            return []
        self.settled = below
        self._retire()
        return self._announce(None) + self._release_what_is_ready()

    def _announce(self, policy: Policy | None) -> list[CoordinatorAction]:
        self._announced += 1
        retired = self._issued.retired_below
        return self._to_all(Announce(self.job, self.settled, self.version, policy, retired, self._announced))

    def _to_all(self, message: Announce | Release) -> list[CoordinatorAction]:
        return [SendToSite(site, message) for site in range(len(self.site_names))]

    def _on_ack(self, ack: PlanAck) -> None:
        site = self._checked_site(ack.site)
        if ack.version > self.version:
            raise ProtocolError(
                f"{self.site_names[site]} acknowledges policy {ack.version}, but the newest is {self.version}"
            )
        if self._issued.acknowledge(ack.version, site):
            self._retire()

    def _retire(self) -> None:
        self._issued.retire(min(self._completed_below))

    # ---- a change of plan inside a collective

    def _on_promise(self, message: SwitchMessage) -> list[CoordinatorAction]:
        switch = self._switch
        site = self._checked_site(message.site)
        if switch is None or message.number != switch.number or message.verb != "promise":
            return []
        switch.promised[site] = (message.limit, message.total)
        if len(switch.promised) < len(self.site_names):
            return []
        self._switch = None
        wanted = switch.policy
        limit = max(limit for limit, _ in switch.promised.values())
        total = min(total for _, total in switch.promised.values())
        fresh: Policy | None = None
        if 0 < limit < total:
            fresh = replace(wanted, version=self.version + 1, from_seq=self._first_free)
            self._issued.issue(fresh)
            self.switched = (fresh.version, switch.seq, limit)
            if self._pending is not None:
                self._pending = replace(self._pending, version=fresh.version + 1)
        order = SwitchMessage(self.job, -1, switch.seq, "switch", switch.number, limit, total, fresh)
        actions: list[CoordinatorAction] = [
            SendToSite(site, replace(order, site=site)) for site in range(len(self.site_names))
        ]
        if fresh is None:
            actions += self.set_plan(wanted.plan, wanted.chunk_elements, wanted.hop_paths)
        return actions

    # ---- transfers

    def _decides(self, policy: Policy) -> TransferCoordinator | None:
        """What decides the transfers under a policy, where they are decided one by one."""
        if policy.plan.transfers is None:
            return None
        rule = policy.plan.transfers.rule
        assert rule is not None and self._clock is not None, "checked by set_plan"
        return TransferCoordinator(self.job, self.site_names, rule, self._clock, self.on_decision)

    def _deciding(self, message: TransferMessage) -> TransferCoordinator:
        """What decides the transfers of the policy under which a collective was released."""
        transfers = self._issued.deciding(message.seq) if message.seq < self.next_seq else None
        if transfers is None:
            raise ProtocolError(
                f"{self.site_names[message.site]} speaks of transfers of collective {message.seq}, "
                "but none are decided for it"
            )
        return transfers

    def _orders(self, act: Callable[[], list[TransferMessage]]) -> list[CoordinatorAction]:
        try:
            return [SendToSite(message.site, message) for message in act()]
        except ProtocolError:
            raise
        except RunFailedError as error:
            return self._stop(str(error), without=None)

    # ---- endings and helpers

    def _stop(self, cause: str, without: int | None) -> list[CoordinatorAction]:
        self.aborted = cause
        self._ready.clear()
        notice = Abort(self.job, cause)
        return [SendToSite(site, notice) for site in range(len(self.site_names)) if site != without]

    def _checked_site(self, site: int) -> int:
        if not 0 <= site < len(self.site_names):
            raise ProtocolError(f"job {self.job} has no site {site}: its {len(self.site_names)} count from 0")
        return site

    def _names(self, sites: Sequence[int]) -> str:
        return ", ".join(self.site_names[site] for site in sites)
