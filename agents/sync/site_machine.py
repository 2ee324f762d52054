"""One site's side of the synchronisation protocol, as a pure state machine.

For every collective (numbered from 0, the same number at every site):

1. `begin`: all workers of this site have submitted it. The machine asks for a `Ready` to the coordinator.
2. `Release` arrives: it names the policy version; the policy itself comes with the first release that uses it and is
   installed (and acknowledged) before anything of the collective is sent.
3. Per chunk: the own contribution and the partial sums of the children come together; the sum goes to the parent. At
   the root it is the result, which goes down: to the children and, where wanted, to this site's workers (`Deliver`).
4. When nothing is left to receive or forward, `Complete`.

Chunks can overtake the release, because they come over other connections (in the published system this race applies
an old tree to new data). They are held until their collective is released here, and only ever handled with the
policy version that they name. Several collectives may be in flight.

Every input returns the list of actions to execute, in order. A message that no correct peer can have sent raises
`ProtocolError`; the runtime then calls `abort(str(error))`, so that all sites stop with the same named cause.

Extension point, the protocol without barrier: if policies are announced ahead (`from_seq` at least two collectives
in the future), `begin` may start a collective as soon as its policy is known instead of waiting for `Release`. Chunks
of collectives not yet begun here are already held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agents.chunks import Chunk
from agents.sync.actions import Complete, Deliver, Failed, Send, SendControl, SiteAction, Waiting
from agents.sync.messages import Abort, ChunkMessage, Direction, PlanAck, ProtocolError, Ready, Release
from agents.sync.payload import Payload
from agents.sync.policy import Policy, Role
from agents.sync.spec import CollectiveSpec, item_size, site_mask
from topologies.errors import RunFailedError, UsageError

Source = Callable[[Chunk], Payload]
"""Gives this site's contribution to a chunk. Called once per chunk, at the release or later."""


@dataclass(slots=True)
class _ChunkState:
    chunk: Chunk
    role: Role
    awaited: int  # bit mask of the children whose partial sum is still missing
    own_missing: bool
    merged: bool  # the partial sum of this site is done and passed on (or there is none)
    finished: bool  # the result has passed here (or none will)
    sum: Payload | None = None


@dataclass(slots=True)
class _Collective:
    spec: CollectiveSpec
    sources: dict[int, Source]
    policy: Policy | None = None
    chunks: list[_ChunkState] = field(default_factory=list)
    left: int = 0  # chunks that are not both merged and finished


class SiteMachine:
    """The protocol at one site of one job.

    site_names gives the number of sites and the names used in messages; `site` is the index of this one.
    """

    def __init__(self, job: str, site: int, site_names: Sequence[str]) -> None:
        if not 0 <= site < len(site_names):
            raise UsageError(f"job {job} has no site {site}: its {len(site_names)} sites are numbered from 0")
        self.job = job
        self.site = site
        self.site_names = tuple(site_names)
        self.next_seq = 0
        self.completed_below = 0
        self.aborted: str | None = None
        self.duplicates = 0
        self._completed_above: set[int] = set()
        self._open: dict[int, _Collective] = {}
        self._held: dict[int, dict[tuple[int, int, Direction], ChunkMessage]] = {}
        self._policies: dict[int, Policy] = {}
        self._newest = 0
        self._retired_below = 0

    # ---- inputs

    def begin(self, seq: int, spec: CollectiveSpec, source: Source | None = None) -> list[SiteAction]:
        """All workers of this site have submitted collective `seq`; numbers come in order without gaps.

        source  gives this site's contributions to all of its parts; without it, each part that this site contributes
                to follows by `contribute`, at any time.

        RunFailedError with the cause when the job was aborted.
        """
        if self.aborted is not None:
            raise RunFailedError(f"job {self.job} has stopped: {self.aborted}")
        if seq != self.next_seq:
            raise UsageError(
                f"job {self.job} at {self._me}: collective {seq} begun, but {self.next_seq} is next"
            )
        sources = {} if source is None else dict.fromkeys(self._own_parts(spec), source)
        self._open[seq] = _Collective(spec, sources)
        self.next_seq = seq + 1
        return [SendControl(Ready(self.job, self.site, seq, spec.digest, spec.summary, self.completed_below))]

    def contribute(self, seq: int, part: int, source: Source) -> list[SiteAction]:
        """This site's contribution to one part of a begun collective is there (once per part)."""
        if self.aborted is not None:
            return []
        collective = self._open.get(seq)
        if collective is None or part in collective.sources or part not in self._own_parts(collective.spec):
            raise UsageError(
                f"job {self.job} at {self._me}: no contribution to part {part} of collective {seq} is missing"
            )
        collective.sources[part] = source
        actions: list[SiteAction] = []
        if collective.policy is not None:
            for state in collective.chunks:
                if state.chunk.part == part and state.own_missing:
                    self._add_own(seq, collective, state, actions)
            self._finish_if_done(seq, actions)
        return actions

    def on_message(self, message: ChunkMessage | Release | Abort) -> list[SiteAction]:
        """A message from a peer site or the coordinator. ProtocolError as the module's text says."""
        if self.aborted is not None:
            return []
        if message.job != self.job:
            raise ProtocolError(f"a message of job {message.job} reached job {self.job} at {self._me}")
        if isinstance(message, ChunkMessage):
            return self._on_chunk_message(message)
        if isinstance(message, Release):
            return self._on_release(message)
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
        return self._newest

    @property
    def installed(self) -> tuple[int, ...]:
        """The policy versions still kept."""
        return tuple(sorted(self._policies))

    @property
    def held(self) -> int:
        """Chunks that wait for their collective to be released here."""
        return sum(len(messages) for messages in self._held.values())

    def waiting_for(self, seq: int) -> Waiting:
        """What collective `seq` waits for at this site: the release, contributions, partial sums or results."""
        collective = self._open.get(seq)
        if collective is None:
            if self._is_complete(seq):
                return Waiting(f"nothing: collective {seq} is complete at {self._me}")
            return Waiting(f"the workers of {self._me} to submit collective {seq}", (self.site,))
        title = f"collective {seq} of job {self.job} ({collective.spec.summary})"
        if collective.policy is None:
            early = len(self._held.get(seq, ()))
            note = f"; {early} chunks from other sites are already held here" if early else ""
            return Waiting(f"the release of {title} by the coordinator: {self._me} is ready{note}")
        sums: dict[int, list[int]] = {}
        results: dict[int, list[int]] = {}
        own: list[int] = []
        for state in collective.chunks:
            if state.own_missing:
                own.append(state.chunk.index)
            for child in _sites_of(state.awaited):
                sums.setdefault(child, []).append(state.chunk.index)
            if state.merged and not state.finished and state.role.down_from is not None:
                results.setdefault(state.role.down_from, []).append(state.chunk.index)
        missing = [f"the contribution of {self._me} to {_listed(own)}"] if own else []
        missing += [f"{_listed(chunks)} summed by {self.site_names[s]}" for s, chunks in sorted(sums.items())]
        missing += [
            f"the result of {_listed(chunks)} from {self.site_names[s]}"
            for s, chunks in sorted(results.items())
        ]
        text = (
            f"{title} under policy {collective.policy.version}, {collective.left} of {len(collective.chunks)} chunks "
            f"open at {self._me}: {'; '.join(missing)}"
        )
        return Waiting(text, tuple(sorted(sums.keys() | results.keys() | ({self.site} if own else set()))))

    # ---- release

    def _on_release(self, release: Release) -> list[SiteAction]:
        seq = release.seq
        actions: list[SiteAction] = []
        if release.policy is not None:
            self._install(release, release.policy, actions)
        self._retired_below = max(self._retired_below, release.retired_below)
        if self._is_complete(seq):
            self.duplicates += 1
            self._drop_policies()
            return actions
        collective = self._open.get(seq)
        if collective is None:
            raise ProtocolError(f"{self._me} got the release of collective {seq}, which it has not begun")
        if collective.policy is not None:
            if collective.policy.version != release.version:
                raise ProtocolError(
                    f"{self._me} got two releases of collective {seq}, "
                    f"under policy {collective.policy.version} and under policy {release.version}"
                )
            self.duplicates += 1
            return actions
        policy = self._policies.get(release.version)
        if policy is None:
            raise ProtocolError(
                f"{self._me} got the release of collective {seq} under policy {release.version}, "
                f"which it does not have (installed: {list(self.installed) or 'none'})"
            )
        if policy.from_seq > seq:
            raise ProtocolError(
                f"collective {seq} is released under policy {policy.version}, which holds from {policy.from_seq} on"
            )
        self._start(seq, collective, policy, actions)
        self._drop_policies()
        return actions

    def _install(self, release: Release, policy: Policy, actions: list[SiteAction]) -> None:
        if policy.version != release.version:
            raise ProtocolError(f"a release under policy {release.version} carries policy {policy.version}")
        if policy.n_sites != len(self.site_names):
            raise ProtocolError(
                f"policy {policy.version} is for {policy.n_sites} sites, but job {self.job} has {len(self.site_names)}"
            )
        if policy.version <= self._newest:
            known = self._policies.get(policy.version)
            if known is not None and known != policy:
                raise ProtocolError(f"{self._me} got two different policies of version {policy.version}")
            return
        self._policies[policy.version] = policy
        self._newest = policy.version
        actions.append(SendControl(PlanAck(self.job, self.site, policy.version)))

    def _start(self, seq: int, collective: _Collective, policy: Policy, actions: list[SiteAction]) -> None:
        spec = collective.spec
        n = len(self.site_names)
        masks = [(site_mask(part.contributors, n), site_mask(part.targets, n)) for part in spec.parts]
        collective.policy = policy
        for chunk in policy.chunk_table(spec):
            role = policy.relations[chunk.tree].role(self.site, *masks[chunk.part])
            passes = role.deliver or bool(role.down_to)
            state = _ChunkState(
                chunk, role, role.up_from, role.own, merged=not role.merges, finished=not passes
            )
            collective.chunks.append(state)
            collective.left += not (state.merged and state.finished)
        for state in collective.chunks:
            if state.own_missing and state.chunk.part in collective.sources:
                self._add_own(seq, collective, state, actions)
        for message in self._held.pop(seq, {}).values():
            self._handle(collective, message, actions)
        self._finish_if_done(seq, actions)

    # ---- chunks

    def _on_chunk_message(self, message: ChunkMessage) -> list[SiteAction]:
        seq = message.seq
        if self._is_complete(seq):
            self.duplicates += 1
            return []
        if not 0 <= message.src < len(self.site_names) or message.src == self.site:
            raise ProtocolError(f"{self._me} got a chunk of collective {seq} from site {message.src}")
        collective = self._open.get(seq)
        if collective is None or collective.policy is None:
            held = self._held.setdefault(seq, {})
            key = (message.chunk, message.src, message.direction)
            self.duplicates += key in held
            held.setdefault(key, message)
            return []
        actions: list[SiteAction] = []
        self._handle(collective, message, actions)
        self._finish_if_done(seq, actions)
        return actions

    def _handle(self, collective: _Collective, message: ChunkMessage, actions: list[SiteAction]) -> None:
        policy = collective.policy
        assert policy is not None
        if message.version != policy.version:
            age = "older" if message.version < policy.version else "newer"
            raise ProtocolError(
                f"{self._describe(message)} names policy {message.version}, {age} than policy {policy.version} "
                f"under which {self._me} runs this collective"
            )
        if not 0 <= message.chunk < len(collective.chunks):
            raise ProtocolError(f"{self._describe(message)}: there are only {len(collective.chunks)} chunks")
        state = collective.chunks[message.chunk]
        chunk, role = state.chunk, state.role
        if (message.part, message.tree) != (chunk.part, chunk.tree):
            raise ProtocolError(
                f"{self._describe(message)} says part {message.part}, tree {message.tree}; "
                f"at {self._me} it is part {chunk.part}, tree {chunk.tree}"
            )
        expected = chunk.size * item_size(collective.spec.dtype)
        if message.payload.nbytes != expected:
            raise ProtocolError(
                f"{self._describe(message)} has {message.payload.nbytes} bytes, not {expected}"
            )
        if message.direction == "up":
            bit = 1 << message.src
            if not role.up_from & bit:
                raise ProtocolError(
                    f"{self._describe(message)}: {self._me} expects it from "
                    f"{self._names(_sites_of(role.up_from)) or 'no site'}"
                )
            if not state.awaited & bit:
                self.duplicates += 1
                return
            state.awaited &= ~bit
            self._add(message.seq, collective, state, message.payload, actions)
            return
        if message.src != role.down_from:
            wanted = "no site" if role.down_from is None else self.site_names[role.down_from]
            raise ProtocolError(f"{self._describe(message)}: {self._me} expects it from {wanted}")
        if not state.merged:
            raise ProtocolError(
                f"{self._describe(message)} came before the partial sum of {self._me} was sent"
            )
        if state.finished:
            self.duplicates += 1
            return
        self._finish_chunk(message.seq, collective, state, message.payload, actions)

    def _add_own(
        self, seq: int, collective: _Collective, state: _ChunkState, actions: list[SiteAction]
    ) -> None:
        state.own_missing = False
        self._add(seq, collective, state, collective.sources[state.chunk.part](state.chunk), actions)

    def _add(
        self,
        seq: int,
        collective: _Collective,
        state: _ChunkState,
        payload: Payload,
        actions: list[SiteAction],
    ) -> None:
        if state.sum is None:
            state.sum = payload
        else:
            op = collective.spec.op
            assert op is not None, "a part without operator has one contributor (checked by CollectiveSpec)"
            state.sum = state.sum.combine(op, payload)
        if state.awaited or state.own_missing:
            return
        total, state.sum = state.sum, None
        state.merged = True
        if state.role.up_to is None:
            self._finish_chunk(seq, collective, state, total, actions)
            return
        actions.append(self._send(seq, collective, state, "up", state.role.up_to, total))
        collective.left -= state.finished

    def _finish_chunk(
        self,
        seq: int,
        collective: _Collective,
        state: _ChunkState,
        result: Payload,
        actions: list[SiteAction],
    ) -> None:
        for child in state.role.down_to:
            actions.append(self._send(seq, collective, state, "down", child, result))
        if state.role.deliver:
            actions.append(Deliver(seq, state.chunk, result))
        state.finished = True
        collective.left -= 1

    def _send(
        self,
        seq: int,
        collective: _Collective,
        state: _ChunkState,
        direction: Direction,
        dst: int,
        payload: Payload,
    ) -> Send:
        policy, chunk = collective.policy, state.chunk
        assert policy is not None
        message = ChunkMessage(
            self.job, seq, policy.version, chunk.part, chunk.index, direction, self.site, chunk.tree, payload
        )
        return Send(
            dst, message, policy.path(self.site, dst), policy.priority(seq, chunk, direction, self.site, dst)
        )

    # ---- endings

    def _finish_if_done(self, seq: int, actions: list[SiteAction]) -> None:
        if self._open[seq].left:
            return
        del self._open[seq]
        self._completed_above.add(seq)
        while self.completed_below in self._completed_above:
            self._completed_above.discard(self.completed_below)
            self.completed_below += 1
        self._drop_policies()
        actions.append(Complete(seq))

    def _drop_policies(self) -> None:
        in_use = {c.policy.version for c in self._open.values() if c.policy is not None}
        for version in list(self._policies):
            if version < min(self._retired_below, self._newest) and version not in in_use:
                del self._policies[version]

    def _stop(self, cause: str) -> list[SiteAction]:
        self.aborted = cause
        failed: list[SiteAction] = [Failed(seq, cause) for seq in sorted(self._open)]
        self._open.clear()
        self._held.clear()
        self._policies.clear()
        return failed

    # ---- helpers

    def _own_parts(self, spec: CollectiveSpec) -> list[int]:
        return [i for i, p in enumerate(spec.parts) if p.contributors is None or self.site in p.contributors]

    def _is_complete(self, seq: int) -> bool:
        return seq < self.completed_below or seq in self._completed_above

    @property
    def _me(self) -> str:
        return self.site_names[self.site]

    def _names(self, sites: Iterable[int]) -> str:
        return ", ".join(self.site_names[site] for site in sites)

    def _describe(self, message: ChunkMessage) -> str:
        what = "partial sum" if message.direction == "up" else "result"
        return f"the {what} of chunk {message.chunk} of collective {message.seq} from {self.site_names[message.src]}"


def _sites_of(mask: int) -> list[int]:
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _listed(chunks: Sequence[int]) -> str:
    shown = ", ".join(map(str, chunks[:6]))
    if len(chunks) == 1:
        return f"chunk {shown}"
    return f"{len(chunks)} chunks ({shown}{', ...' if len(chunks) > 6 else ''})"
