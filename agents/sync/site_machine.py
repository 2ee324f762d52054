"""One site's side of the synchronisation protocol, as a pure state machine.

For every collective (numbered from 0, the same number at every site):

1. `begin`: all workers of this site have submitted it. The machine asks for a `Ready` to the coordinator.
2. `Release` names the policy version; the policy itself comes with the first release that uses it and is
   installed (and acknowledged) before anything of the collective is sent.
3. Per chunk: the own contribution and the partial sums of the children come together; the sum goes to the
   parent. At the root it is the result, which goes down, and to this site's workers (`Deliver`).
4. When nothing is left to receive or forward: `Complete`, and the state of the collective is dropped.

Under a policy that decides per transfer, 3 is done as the coordinator orders (`site_transfers`), and 4 comes
with its word that every site has every result.

Chunks can overtake the release, because they come over other connections (in the published system this race
applies an old tree to new data). They are held until their collective starts here, and only ever handled
under the policy version that they name. Several collectives may be in flight.

Every input returns the actions to execute, in order. A message that no correct peer can have sent raises
`ProtocolError`; the runtime then calls `abort(str(error))`, so that all sites stop with one named cause.

Without the barrier (`Announce`): the coordinator says up to which collective the policies are settled, and
those start here when they are begun. Announcements may overtake each other: a collective starts only when
all policies issued before its settlement are here. A site may be ahead of the others, which hold its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agents.sync.actions import Complete, Failed, SendControl, SiteAction, Waiting
from agents.sync.collective import CollectiveAtSite, Source
from agents.sync.installed import InstalledPolicies
from agents.sync.messages import (
    Abort,
    Announce,
    ChunkMessage,
    Direction,
    PlanAck,
    ProtocolError,
    Ready,
    Release,
    SwitchMessage,
    ToSite,
    TransferMessage,
)
from agents.sync.policy import Policy
from agents.sync.spec import CollectiveSpec
from topologies.errors import RunFailedError, UsageError

__all__ = ["SiteMachine", "Source"]

# More chunks than any collective has: the promise of a site at which all of it was begun.
ALL = 2**31 - 1


class SiteMachine:
    """The protocol at one site of one job.

    site, site_names  the index of this site, and the names of all (for messages; their number is what counts)
    next_seq          the collective that is begun next
    completed_below   every collective below this is complete here
    settled_below     every collective below this starts here without a release
    aborted           the cause, once the job has stopped
    """

    def __init__(self, job: str, site: int, site_names: Sequence[str]) -> None:
        if not 0 <= site < len(site_names):
            raise UsageError(f"job {job} has no site {site}: its {len(site_names)} sites are numbered from 0")
        self.job = job
        self.site = site
        self.site_names = tuple(site_names)
        self.next_seq = 0
        self.completed_below = 0
        self.settled_below = 0
        self.aborted: str | None = None
        self._duplicates = 0
        self._completed_above: set[int] = set()
        self._open: dict[int, CollectiveAtSite] = {}
        self._held: dict[int, dict[tuple[int, int, Direction], ChunkMessage]] = {}
        self._policies = InstalledPolicies(job, self._me, len(self.site_names))
        self._settled_version = self._announced = 0
        self._switched = 0  # the newest change of plan inside a collective that was made here

    # ---- inputs

    def begin(self, seq: int, spec: CollectiveSpec, source: Source | None = None) -> list[SiteAction]:
        """All workers of this site have submitted collective `seq`; numbers come in order without gaps.

        source  gives this site's contributions to all of its parts; without it, each part that this site
                contributes to follows by `contribute`, before or after the release.

        RunFailedError with the cause when the job has stopped.
        """
        if self.aborted is not None:
            raise RunFailedError(f"job {self.job} has stopped: {self.aborted}")
        if seq != self.next_seq:
            raise UsageError(f"{self._me}: collective {seq} of {self.job} begun, {self.next_seq} is next")
        self._check_sites(spec)
        collective = CollectiveAtSite(self.job, seq, self.site, self.site_names, spec)
        if source is not None:
            collective.sources = dict.fromkeys(collective.own_parts, source)
        self._open[seq] = collective
        self.next_seq = seq + 1
        ready = Ready(self.job, self.site, seq, spec.digest, spec.summary, self.completed_below)
        actions: list[SiteAction] = [SendControl(ready)]
        self._start_settled(actions)
        return actions

    def contribute(self, seq: int, part: int, source: Source) -> list[SiteAction]:
        """This site's contribution to one part of a begun collective is there; once per part.

        Ignored when the collective is complete here: nobody wanted that part, or it is empty.
        """
        if self.aborted is not None or self._is_complete(seq):
            return []
        collective = self._open.get(seq)
        if collective is None or part in collective.sources or part not in collective.own_parts:
            raise UsageError(
                f"{self._me} cannot contribute to part {part} of collective {seq} of job {self.job}",
                hint="it is done once, after begin, and only to parts that name this site as a contributor",
            )
        actions: list[SiteAction] = []
        collective.contribute(part, source, actions)
        self._complete_if_done(collective, actions)
        return actions

    def on_message(self, message: ChunkMessage | ToSite) -> list[SiteAction]:
        """A message from a peer site or the coordinator. ProtocolError as the module's text says."""
        if self.aborted is not None:
            return []
        if message.job != self.job:
            raise ProtocolError(f"a message of job {message.job} reached job {self.job} at {self._me}")
        if isinstance(message, ChunkMessage):
            return self._on_chunk(message)
        if isinstance(message, Release):
            return self._on_release(message)
        if isinstance(message, Announce):
            return self._on_announce(message)
        if isinstance(message, TransferMessage):
            return self._on_order(message)
        if isinstance(message, SwitchMessage):
            return self._on_switch(message)
        return self._stop(message.cause)

    def abort(self, cause: str) -> list[SiteAction]:
        """Stop the job from here: the coordinator is told, every open collective fails with the cause."""
        if self.aborted is not None:
            return []
        return [SendControl(Abort(self.job, cause, self.site)), *self._stop(cause)]

    # ---- introspection

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The collectives begun and not complete here."""
        return tuple(sorted(self._open))

    @property
    def version(self) -> int:
        """The newest installed policy version; 0 before the first."""
        return self._policies.newest

    @property
    def installed(self) -> tuple[int, ...]:
        """The policy versions that are kept."""
        return self._policies.versions

    def started(self, seq: int) -> bool:
        """Whether collective `seq` runs here, or is over."""
        collective = self._open.get(seq)
        return self._is_complete(seq) if collective is None else collective.policy is not None

    def holds(self, seq: int) -> bool:
        """Whether chunks of collective `seq` wait here until it starts."""
        return seq in self._held

    @property
    def held(self) -> int:
        """Chunks that wait for their collective to start here."""
        return sum(len(messages) for messages in self._held.values())

    @property
    def duplicates(self) -> int:
        """Messages dropped because they had been handled before."""
        return self._duplicates + sum(collective.duplicates for collective in self._open.values())

    def waiting_for(self, seq: int) -> Waiting:
        """What collective `seq` waits for here: the release, contributions, partial sums or results."""
        collective = self._open.get(seq)
        if collective is not None:
            return collective.waiting(len(self._held.get(seq, ())))
        if self._is_complete(seq):
            return Waiting(f"nothing: collective {seq} of job {self.job} is complete at {self._me}")
        return Waiting(
            f"the workers of {self._me} to submit collective {seq} of job {self.job}", (self.site,)
        )

    # ---- messages

    def _on_chunk(self, message: ChunkMessage) -> list[SiteAction]:
        seq = message.seq
        if self._is_complete(seq):
            self._duplicates += 1
            return []
        if not 0 <= message.src < len(self.site_names) or message.src == self.site:
            raise ProtocolError(f"{self._me} got a chunk of collective {seq} from site {message.src}")
        collective = self._open.get(seq)
        actions: list[SiteAction] = []
        newer = (
            collective is not None
            and collective.policy is not None
            and collective.promised
            and message.version > collective.policy.version
        )
        if collective is None or collective.policy is None or newer:
            held = self._held.setdefault(seq, {})
            key = (message.chunk, message.src, message.direction)
            self._duplicates += key in held
            held.setdefault(key, message)
            return actions
        collective.handle(message, actions)
        self._complete_if_done(collective, actions)
        return actions

    def _on_release(self, release: Release) -> list[SiteAction]:
        seq = release.seq
        actions: list[SiteAction] = []
        if release.policy is not None:
            if release.policy.version != release.version:
                raise ProtocolError(
                    f"a release under policy {release.version} carries policy {release.policy.version}"
                )
            self._install(release.policy, actions)
        self._policies.retire(release.retired_below)
        self._drop_policies()
        if self._is_complete(seq):
            self._duplicates += 1
            return actions
        collective = self._open.get(seq)
        if collective is None:
            raise ProtocolError(f"{self._me} got the release of collective {seq}, which it has not begun")
        if collective.policy is not None:
            if collective.released_under != release.version:
                raise ProtocolError(
                    f"{self._me} got two releases of collective {seq}, under policy "
                    f"{collective.released_under} and under policy {release.version}"
                )
            self._duplicates += 1
            return actions
        self._start(collective, self._policies.of(release), actions)
        return actions

    def _on_announce(self, announce: Announce) -> list[SiteAction]:
        actions: list[SiteAction] = []
        if announce.policy is not None:
            self._install(announce.policy, actions)
        self._policies.retire(announce.retired_below)
        if announce.number > self._announced:
            self._announced = announce.number
            self.settled_below, self._settled_version = announce.below, announce.version
        self._start_settled(actions)
        self._drop_policies()
        return actions

    def _start_settled(self, actions: list[SiteAction]) -> None:
        """Start what has begun and needs no release, once no policy of it can be missing."""
        for collective in [c for c in self._open.values() if c.policy is None]:
            if collective.seq >= self.settled_below or not self._policies.has_all_up_to(self._settled_version):
                return
            self._start(collective, self._policies.at(collective.seq), actions)

    def _start(self, collective: CollectiveAtSite, policy: Policy, actions: list[SiteAction]) -> None:
        collective.start(policy, actions)
        self._take_held(collective, actions)

    def _take_held(self, collective: CollectiveAtSite, actions: list[SiteAction]) -> None:
        for message in self._held.pop(collective.seq, {}).values():
            collective.handle(message, actions)
        self._complete_if_done(collective, actions)

    def _on_order(self, message: TransferMessage) -> list[SiteAction]:
        """The coordinator's word on one transfer of a collective that has no trees."""
        if self._is_complete(message.seq):
            self._duplicates += 1
            return []
        collective = self._open.get(message.seq)
        if collective is None or collective.transfers is None:
            raise ProtocolError(
                f"{self._me} got {message.verb!r} for collective {message.seq}, which decides no transfers"
            )
        actions: list[SiteAction] = []
        collective.transfers.order(message, actions)
        self._complete_if_done(collective, actions)
        return actions

    def _on_switch(self, message: SwitchMessage) -> list[SiteAction]:
        """A change of plan inside a collective: keep still from some chunk on, then go on under a new one."""
        collective = self._open.get(message.seq)
        actions: list[SiteAction] = []
        if message.number <= self._switched:
            self._duplicates += 1  # repeated, of a change that is over: it must not hold back anything now
            return actions
        if message.verb == "ask":
            limit, total = ALL, ALL
            if collective is not None and collective.policy is not None and collective.transfers is None:
                limit, total = collective.promise()
            return [SendControl(replace(message, site=self.site, verb="promise", limit=limit, total=total))]
        if message.verb != "switch":
            raise ProtocolError(f"{self._me} got {message.verb!r} from the coordinator")
        self._switched = message.number
        if message.policy is not None:
            self._install(message.policy, actions)
        if collective is None:
            if message.policy is not None and not self._is_complete(message.seq):
                raise ProtocolError(f"{self._me} is to switch collective {message.seq}, not begun here")
            return actions
        collective.switch(message.limit, message.policy, actions)
        self._take_held(collective, actions)
        return actions

    def _install(self, policy: Policy, actions: list[SiteAction]) -> None:
        if self._policies.install(policy):
            actions.append(SendControl(PlanAck(self.job, self.site, policy.version)))

    # ---- endings

    def _complete_if_done(self, collective: CollectiveAtSite, actions: list[SiteAction]) -> None:
        if not collective.done:
            return
        self._duplicates += collective.duplicates
        del self._open[collective.seq]
        self._completed_above.add(collective.seq)
        while self.completed_below in self._completed_above:
            self._completed_above.discard(self.completed_below)
            self.completed_below += 1
        self._drop_policies()
        actions.append(Complete(collective.seq))

    def _drop_policies(self) -> None:
        in_use = {c.policy.version for c in self._open.values() if c.policy is not None}
        in_use.update(*(collective.versions for collective in self._open.values()))
        self._policies.drop(in_use)

    def _stop(self, cause: str) -> list[SiteAction]:
        self.aborted = cause
        failed: list[SiteAction] = [Failed(seq, cause) for seq in sorted(self._open)]
        self._open.clear()
        self._held.clear()
        self._policies.clear()
        return failed

    # ---- helpers

    def _is_complete(self, seq: int) -> bool:
        return seq < self.completed_below or seq in self._completed_above

    def _check_sites(self, spec: CollectiveSpec) -> None:
        n = len(self.site_names)
        for number, part in enumerate(spec.parts):
            named = (part.contributors or frozenset()) | (part.targets or frozenset())
            unknown = sorted(site for site in named if not 0 <= site < n)
            if unknown:
                raise UsageError(
                    f"part {number} of the {spec.kind} names site {unknown[0]}, but there are {n}"
                )

    @property
    def _me(self) -> str:
        return self.site_names[self.site]
