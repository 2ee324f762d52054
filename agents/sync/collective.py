"""One collective at one site: the chunks from the release to the end (part of the site's state machine)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agents.chunks import Chunk
from agents.sync.actions import Deliver, Send, SiteAction, Waiting
from agents.sync.messages import ChunkMessage, Direction, ProtocolError
from agents.sync.order import Key
from agents.sync.payload import Payload
from agents.sync.policy import Policy
from agents.sync.relations import Role
from agents.sync.site_transfers import TransfersAtSite
from agents.sync.spec import CollectiveSpec, item_size, site_mask

Source = Callable[[Chunk], Payload]
"""Gives this site's contribution to a chunk. Called once per chunk, at the release or later."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """What a run of chunks has in common: the policy and what follows from it."""

    policy: Policy
    key: Key
    window: int | None
    due_s: float  # when its first chunk is due
    bits: float


@dataclass(slots=True)
class _ChunkState:
    chunk: Chunk
    stage: _Stage
    role: Role
    awaited: int  # bit mask of the children whose partial sum is still missing
    own_missing: bool
    merged: bool  # the partial sum of this site is done and passed on (or there is none)
    finished: bool  # the result has passed here (or none will)
    sum: Payload | None = None


class CollectiveAtSite:
    """State of one collective at `site` from `begin` to `Complete`; drives nothing by itself.

    policy      the policy it runs under (its last chunks, after a switch); None before the release
    sources     part -> where this site's contribution comes from
    duplicates  messages that were dropped because they had been handled before
    """

    def __init__(
        self, job: str, seq: int, site: int, site_names: tuple[str, ...], spec: CollectiveSpec
    ) -> None:
        self.job = job
        self.seq = seq
        self.site = site
        self.site_names = site_names
        self.spec = spec
        self.policy: Policy | None = None
        self.released_under = 0  # the version of its first policy
        self.sources: dict[int, Source] = {}
        self.transfers: TransfersAtSite | None = None  # where the policy decides them one by one
        self._duplicates = 0
        self._chunks: list[_ChunkState] = []
        self._left = 0  # chunks that are not both merged and finished
        self._begun = 0  # own contributions were sent up to this chunk
        self._frozen: int | None = None  # own contributions from this chunk on wait for a switch
        self._finished = 0  # chunks whose result has passed here, or will not
        self._ahead: list[int] = []  # heap of own contributions that the window holds back, by chunk

    @property
    def own_parts(self) -> list[int]:
        """The parts that this site contributes to."""
        parts = enumerate(self.spec.parts)
        return [i for i, p in parts if p.contributors is None or self.site in p.contributors]

    @property
    def done(self) -> bool:
        """Released, everything delivered, nothing left to receive or forward."""
        if self.transfers is not None:
            return self.transfers.done
        return self.policy is not None and not self._left

    @property
    def duplicates(self) -> int:
        return self._duplicates + (0 if self.transfers is None else self.transfers.duplicates)

    # ---- inputs

    def start(self, policy: Policy, actions: list[SiteAction]) -> None:
        """The release: build the chunk table and feed the contributions that are there."""
        self.policy, self.released_under = policy, policy.version
        if policy.per_transfer(self.spec):
            names = self.site_names
            self.transfers = TransfersAtSite(self.job, self.seq, self.site, names, self.spec, policy)
            for part in sorted(self.sources):
                self._offer(self.transfers, part, actions)
            return
        bits = 8.0 * self.spec.nbytes
        stage = _Stage(policy, policy.link_key(self.seq, self.spec), policy.window(self.spec), 0.0, bits)
        self._lay_out(stage, policy.chunk_table(self.spec), actions)

    def _lay_out(self, stage: _Stage, table: tuple[Chunk, ...], actions: list[SiteAction]) -> None:
        n = len(self.site_names)
        masks = [(site_mask(p.contributors, n), site_mask(p.targets, n)) for p in self.spec.parts]
        first = len(self._chunks)
        for chunk in table:
            role = stage.policy.relations[chunk.tree].role(self.site, *masks[chunk.part])
            passes = role.deliver or bool(role.down_to)
            state = _ChunkState(chunk, stage, role, role.up_from, role.own, not role.merges, not passes)
            self._chunks.append(state)
            self._left += not (state.merged and state.finished)
            self._finished += state.finished
        for state in self._chunks[first:]:
            if state.own_missing and state.chunk.part in self.sources:
                self._add_own(state, actions)

    def promise(self) -> tuple[int, int]:
        """(limit, total): chunks from `limit` on have not been sent by this site's own doing and will not be
        before a switch. Where contributions are not held back by a window that is the end.
        """
        total = len(self._chunks)
        if self._frozen is None:
            window = self._chunks[-1].stage.window if self._chunks else None
            # An earlier part may have run under a wider window than the last.
            ahead = total if window is None else max(self._begun, self._finished + window)
            self._frozen = min(total, ahead)
        return self._frozen, total

    @property
    def promised(self) -> bool:
        """Whether a switch may come: then chunks of a newer policy may be ahead of it."""
        return self._frozen is not None

    @property
    def versions(self) -> set[int]:
        """The policies under which its chunks run."""
        return {state.stage.policy.version for state in self._chunks}

    def switch(self, limit: int, policy: Policy | None, actions: list[SiteAction]) -> None:
        """Run the chunks from `limit` on under another policy; with none, go on as before.

        Every site has promised that none of them was begun, so they can be cut anew.
        """
        self._frozen = None
        if policy is not None:
            kept, dropped = self._chunks[:limit], self._chunks[limit:]
            for state in dropped:
                if state.awaited != state.role.up_from:
                    raise ProtocolError(f"chunk {state.chunk.index} was begun, but is to change its policy")
                self._left -= not (state.merged and state.finished)
                self._finished -= state.finished
            self._chunks = kept
            self._ahead = [index for index in self._ahead if index < limit]
            heapq.heapify(self._ahead)
            before = tuple(state.chunk for state in kept)
            last = kept[-1].stage
            due_s = last.due_s + last.policy.span_s(last.bits) * kept[-1].chunk.position
            table = policy.rest_table(self.spec, before)
            bits = 8.0 * item_size(self.spec.dtype) * sum(chunk.size for chunk in table)
            key = policy.link_key(self.seq, self.spec, bits=bits, due_s=due_s)
            self.policy = policy
            self._lay_out(_Stage(policy, key, policy.window(self.spec), due_s, bits), table, actions)
        self._offer_ahead(actions)

    def contribute(self, part: int, source: Source, actions: list[SiteAction]) -> None:
        """The contribution to one part is there, before or after the release."""
        self.sources[part] = source
        if self.transfers is not None:
            self._offer(self.transfers, part, actions)
            return
        for state in self._chunks:
            if state.chunk.part == part and state.own_missing:
                self._add_own(state, actions)

    def handle(self, message: ChunkMessage, actions: list[SiteAction]) -> None:
        """A chunk from a peer, after the release. ProtocolError when no correct peer sends it."""
        if self.transfers is not None:
            self._check_version(message, self._running_policy())
            self.transfers.handle(message, actions)
            return
        state = self._checked(message)
        if message.direction == "up":
            bit = 1 << message.src
            if not state.role.up_from & bit:
                wanted = ", ".join(self.site_names[s] for s in _sites_of(state.role.up_from)) or "no site"
                raise ProtocolError(f"{self._describe(message)}: {self._me} expects it from {wanted}")
            if not state.awaited & bit:
                self._duplicates += 1
                return
            state.awaited &= ~bit
            self._add(state, message.payload, actions)
            return
        source = state.role.down_from
        if message.src != source:
            wanted = "no site" if source is None else self.site_names[source]
            raise ProtocolError(f"{self._describe(message)}: {self._me} expects it from {wanted}")
        if not state.merged:
            raise ProtocolError(
                f"{self._describe(message)} came before {self._me} had sent its own partial sum"
            )
        if state.finished:
            self._duplicates += 1
            return
        self._finish(state, message.payload, actions)

    # ---- introspection

    def waiting(self, held: int) -> Waiting:
        """What is missing, and from whom; `held` chunks wait for the release."""
        title = f"collective {self.seq} of job {self.job} ({self.spec.summary})"
        if self.policy is None:
            early = f"; {held} chunks from other sites are already here" if held else ""
            return Waiting(f"the release of {title} by the coordinator, {self._me} being ready{early}")
        if self.transfers is not None:
            return self.transfers.waiting()
        own: list[int] = []
        sums: dict[int, list[int]] = {}
        results: dict[int, list[int]] = {}
        for state in self._chunks:
            index, down_from = state.chunk.index, state.role.down_from
            # With its source there, a contribution is only held back by the window: others are to blame.
            if state.own_missing and state.chunk.part not in self.sources:
                own.append(index)
            for child in _sites_of(state.awaited):
                sums.setdefault(child, []).append(index)
            if state.merged and not state.finished and down_from is not None:
                results.setdefault(down_from, []).append(index)
        missing = [f"the contribution of {self._me} to {_listed(own)}"] if own else []
        for site, chunks in sorted(sums.items()):
            missing.append(f"the partial sum of {_listed(chunks)} from {self.site_names[site]}")
        for site, chunks in sorted(results.items()):
            missing.append(f"the result of {_listed(chunks)} from {self.site_names[site]}")
        state_of_it = f"{self._left} of {len(self._chunks)} chunks open at {self._me}"
        return Waiting(
            f"{title} under policy {self.policy.version}, {state_of_it}: {'; '.join(missing)}",
            tuple(sorted(sums.keys() | results.keys() | ({self.site} if own else set()))),
        )

    # ---- the chunks

    def _offer(self, transfers: TransfersAtSite, part: int, actions: list[SiteAction]) -> None:
        mine = [chunk for chunk in transfers.chunks if chunk.part == part]
        transfers.offer({chunk.index: self.sources[part](chunk) for chunk in mine}, actions)

    def _check_version(self, message: ChunkMessage, policy: Policy) -> None:
        if message.version != policy.version:
            age = "older" if message.version < policy.version else "newer"
            raise ProtocolError(
                f"{self._describe(message)} names policy {message.version}, {age} than policy "
                f"{policy.version}, under which {self._me} runs this collective"
            )

    def _checked(self, message: ChunkMessage) -> _ChunkState:
        known = 0 <= message.chunk < len(self._chunks)
        self._check_version(
            message, self._chunks[message.chunk].stage.policy if known else self._running_policy()
        )
        if not known:
            raise ProtocolError(f"{self._describe(message)}: there are only {len(self._chunks)} chunks")
        state = self._chunks[message.chunk]
        chunk = state.chunk
        if (message.part, message.tree) != (chunk.part, chunk.tree):
            raise ProtocolError(
                f"{self._describe(message)} says part {message.part}, tree {message.tree}; "
                f"at {self._me} it is part {chunk.part}, tree {chunk.tree}"
            )
        expected = chunk.size * item_size(self.spec.dtype)
        if message.payload.nbytes != expected:
            found = message.payload.nbytes
            raise ProtocolError(f"{self._describe(message)} has {found} bytes, not {expected}")
        return state

    def _add_own(self, state: _ChunkState, actions: list[SiteAction]) -> None:
        leaf = not state.role.up_from and state.role.up_to is not None
        if leaf and state.chunk.index >= self._limit(state):
            heapq.heappush(self._ahead, state.chunk.index)
            return
        if leaf:
            self._begun = max(self._begun, state.chunk.index + 1)
        state.own_missing = False
        self._add(state, self.sources[state.chunk.part](state.chunk), actions)

    def _add(self, state: _ChunkState, payload: Payload, actions: list[SiteAction]) -> None:
        if state.sum is None:
            total = payload
        else:
            op = self.spec.op
            assert op is not None, "a part without operator has one contributor (checked by CollectiveSpec)"
            total = state.sum.combine(op, payload)
        if state.awaited or state.own_missing:
            state.sum = total
            return
        state.sum = None
        state.merged = True
        if state.role.up_to is None:
            self._finish(state, total, actions)
            return
        actions.append(self._send(state, "up", state.role.up_to, total))
        self._left -= state.finished

    def _finish(self, state: _ChunkState, result: Payload, actions: list[SiteAction]) -> None:
        for child in state.role.down_to:
            actions.append(self._send(state, "down", child, result))
        if state.role.deliver:
            actions.append(Deliver(self.seq, state.chunk, result))
        self._finished += not state.finished
        state.finished = True
        self._left -= 1
        if self._ahead:
            self._offer_ahead(actions)

    def _limit(self, state: _ChunkState) -> float:
        """The chunk from which on own contributions are held back where this site is a leaf."""
        window = state.stage.window
        limit = math.inf if window is None else self._finished + window
        return limit if self._frozen is None else min(limit, self._frozen)

    def _offer_ahead(self, actions: list[SiteAction]) -> None:
        while self._ahead and self._ahead[0] < self._limit(self._chunks[self._ahead[0]]):
            self._add_own(self._chunks[heapq.heappop(self._ahead)], actions)

    def _send(self, state: _ChunkState, direction: Direction, dst: int, payload: Payload) -> Send:
        policy, chunk = state.stage.policy, state.chunk
        return Send(
            dst,
            ChunkMessage(
                job=self.job,
                seq=self.seq,
                version=policy.version,
                part=chunk.part,
                chunk=chunk.index,
                direction=direction,
                src=self.site,
                tree=chunk.tree,
                payload=payload,
            ),
            policy.path(self.site, dst),
            state.stage.key(chunk, direction, self.site, dst),
            self.spec.cls,
        )

    # ---- helpers

    def _running_policy(self) -> Policy:
        assert self.policy is not None, "chunks are handled after the release"
        return self.policy

    @property
    def _me(self) -> str:
        return self.site_names[self.site]

    def _describe(self, message: ChunkMessage) -> str:
        what = "partial sum" if message.direction == "up" else "result"
        sender = self.site_names[message.src]
        return f"the {what} of chunk {message.chunk} of collective {self.seq} from {sender}"


def _sites_of(mask: int) -> Iterable[int]:
    return (k for k in range(mask.bit_length()) if mask >> k & 1)


def _listed(chunks: Sequence[int]) -> str:
    shown = ", ".join(map(str, chunks[:6]))
    if len(chunks) == 1:
        return f"chunk {shown}"
    return f"{len(chunks)} chunks ({shown}{', ...' if len(chunks) > 6 else ''})"
