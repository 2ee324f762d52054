"""One collective at one site where transfers are decided one by one (part of the site's state machine).

The site offers its contributions to the coordinator and from then on does as told: `send` the partial sum or
the result of a chunk to a peer. It adds what peers send and reports it. Which contributions a partial sum
holds is the coordinator's knowledge; `final` tells the server that a sum is complete. The collective ends
with `closed`, since a site that has all results may still have to give them on.

A partial sum is kept after it was sent, for a second attempt. An attempt that the coordinator cancels is not
added when it arrives after all, and the answer to `cancel` says which came first, so every contribution
counts once however late a message is.
"""

from __future__ import annotations

from dataclasses import dataclass

from agents.chunks import Chunk
from agents.sync.actions import Deliver, Send, SendControl, SiteAction, Waiting
from agents.sync.messages import ChunkMessage, Direction, ProtocolError, TransferMessage, TransferVerb
from agents.sync.payload import ArrayPayload, Payload
from agents.sync.policy import Policy
from agents.sync.spec import CollectiveSpec, item_size


@dataclass(slots=True)
class _State:
    chunk: Chunk
    partial: Payload | None = None
    result: Payload | None = None
    own: bool = False  # the own contribution is in the partial sum


class TransfersAtSite:
    """From the release to `closed`. `done` then; `duplicates` counts messages that changed nothing."""

    def __init__(
        self, job: str, seq: int, site: int, site_names: tuple[str, ...], spec: CollectiveSpec, policy: Policy
    ) -> None:
        self.job = job
        self.seq = seq
        self.site = site
        self.site_names = site_names
        self.spec = spec
        self.policy = policy
        self.done = False
        self.duplicates = 0
        self._states = [_State(chunk) for chunk in policy.chunk_table(spec)]
        self._key = policy.link_key(seq, spec)
        self._merged: set[tuple[int, int]] = set()  # (chunk, attempt)
        self._cancelled: set[tuple[int, int]] = set()

    # ---- inputs

    def offer(self, contributions: dict[int, Payload], actions: list[SiteAction]) -> None:
        """The own contributions to some chunks, by chunk index."""
        for index, payload in contributions.items():
            state = self._states[index]
            state.own = True
            self._add(state, payload)
        if contributions:
            self._tell("offer", tuple(contributions), actions)

    def order(self, message: TransferMessage, actions: list[SiteAction]) -> None:
        """What the coordinator wants. ProtocolError when it cannot be."""
        if message.verb == "closed":
            missing = [state.chunk.index for state in self._states if state.result is None]
            if missing:
                raise ProtocolError(f"{self._title} is closed, but {self._me} has no result of {missing[:6]}")
            self.done = True
            return
        state = self._state(message.chunk)
        match message.verb:
            case "send" if message.direction == "up" and state.result is not None:
                self.duplicates += 1
            case "send":
                payload = state.partial if message.direction == "up" else state.result
                if payload is None:
                    raise ProtocolError(
                        f"{self._me} is to send chunk {message.chunk} of {self._title}, but has none"
                    )
                if message.direction == "up" and isinstance(payload, ArrayPayload):
                    # Handed out: what may still be added to it must go into a buffer of its own.
                    state.partial = type(payload)(payload.array)
                actions.append(self._send(state.chunk, message, payload))
            case "final" if state.result is not None:
                self.duplicates += 1
            case "final":
                if state.partial is None or not state.own:
                    raise ProtocolError(f"chunk {message.chunk} of {self._title} is not final at {self._me}")
                self._result(state, state.partial, actions)
            case "cancel":
                attempt = (message.chunk, message.attempt)
                if attempt in self._merged:
                    self.duplicates += 1  # the report that it was added is under way
                    return
                self._cancelled.add(attempt)
                self._tell("cancelled", message.chunks, actions, message.peer, message.attempt)
            case _:
                raise ProtocolError(f"{self._me} got {message.verb!r} of {self._title} from the coordinator")

    def handle(self, message: ChunkMessage, actions: list[SiteAction]) -> None:
        """A chunk from a peer."""
        state = self._state(message.chunk)
        expected = state.chunk.size * item_size(self.spec.dtype)
        if message.part != state.chunk.part or message.payload.nbytes != expected:
            raise ProtocolError(
                f"chunk {message.chunk} of {self._title} from {self.site_names[message.src]} says part "
                f"{message.part} and {message.payload.nbytes} bytes, not {state.chunk.part} and {expected}"
            )
        if message.direction == "down":
            if state.result is None:
                self._result(state, message.payload, actions)
            else:
                self.duplicates += 1
            self._tell("received", (message.chunk,), actions, message.src, message.tree)
            return
        attempt = (message.chunk, message.tree)
        if attempt in self._merged or attempt in self._cancelled:
            self.duplicates += 1
            return
        if state.result is not None:
            raise ProtocolError(
                f"a partial sum of chunk {message.chunk} of {self._title} came to {self._me} after the result"
            )
        self._merged.add(attempt)
        self._add(state, message.payload)
        self._tell("merged", (message.chunk,), actions, message.src, message.tree)

    # ---- introspection

    def waiting(self) -> Waiting:
        """What is missing here."""
        own = [state.chunk.index for state in self._states if not state.own]
        missing = [state.chunk.index for state in self._states if state.result is None]
        if own:
            return Waiting(
                f"{self._title}: the contribution of {self._me} to {len(own)} chunks", (self.site,)
            )
        if missing:
            return Waiting(f"{self._title}: the results of {len(missing)} chunks at {self._me}")
        return Waiting(f"{self._title}: the coordinator's word that every site has every result")

    # ---- helpers

    def _add(self, state: _State, payload: Payload) -> None:
        if state.partial is None:
            state.partial = payload
            return
        assert self.spec.op is not None, "an all-reduce has an operator"
        state.partial = state.partial.combine(self.spec.op, payload)

    def _result(self, state: _State, payload: Payload, actions: list[SiteAction]) -> None:
        state.result, state.partial = payload, None
        actions.append(Deliver(self.seq, state.chunk, payload))

    def _send(self, chunk: Chunk, order: TransferMessage, payload: Payload) -> Send:
        direction: Direction = order.direction
        message = ChunkMessage(
            job=self.job,
            seq=self.seq,
            version=self.policy.version,
            part=chunk.part,
            chunk=chunk.index,
            direction=direction,
            src=self.site,
            tree=order.attempt,
            payload=payload,
        )
        path = self.policy.path(self.site, order.peer)
        key = self._key(chunk, direction, self.site, order.peer)
        return Send(order.peer, message, path, key, self.spec.cls)

    def _tell(
        self,
        verb: TransferVerb,
        chunks: tuple[int, ...],
        actions: list[SiteAction],
        peer: int = -1,
        attempt: int = 0,
    ) -> None:
        total = nbytes = 0
        if verb == "offer":
            total = len(self._states)
            nbytes = max(state.chunk.size for state in self._states) * item_size(self.spec.dtype)
        message = TransferMessage(
            self.job, self.site, self.seq, verb, chunks, "up", peer, attempt, total, nbytes
        )
        actions.append(SendControl(message))

    def _state(self, index: int) -> _State:
        if not 0 <= index < len(self._states):
            raise ProtocolError(f"{self._title} has no chunk {index}: there are {len(self._states)}")
        return self._states[index]

    @property
    def chunks(self) -> list[Chunk]:
        """The chunk table."""
        return [state.chunk for state in self._states]

    @property
    def _me(self) -> str:
        return self.site_names[self.site]

    @property
    def _title(self) -> str:
        return f"collective {self.seq} of job {self.job} ({self.spec.summary})"
