"""A whole job in one process, driven by a seeded shuffle of everything that may happen next.

The network between sites may delay, reorder and duplicate chunks at will; control connections keep their
order, as TCP does, but may repeat messages after a reconnect. Every payload is copied on arrival, as a
network does, and the sender's bytes are checked not to have changed while the message was under way. Results
are checked where they are delivered.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agents.chunks import Chunk
from agents.sync.actions import Complete, Deliver, Failed, Send, SendControl, SendToSite, SiteAction
from agents.sync.coordinator_machine import CoordinatorMachine
from agents.sync.messages import ChunkMessage, control_from_dict, control_to_dict
from agents.sync.payload import ArrayPayload, GhostPayload, Payload, combine_arrays
from agents.sync.site_machine import SiteMachine
from agents.sync.spec import CollectiveSpec, item_size

from .random_jobs import names, random_plan

COORDINATOR = -1


@dataclass
class Options:
    """How rough the world is."""

    duplicate: float = 0.0
    ghosts: bool = False
    depth: int = 3
    replan: float = 0.5
    late_contributions: float = 0.0
    leases_end: float = 0.0
    lose_transfers: float = 0.0
    switch: float = 0.0
    ahead: int = 0
    change_ahead: float = 0.0
    overtake: float = 0.0
    lose_site_after: int | None = None


@dataclass
class World:
    """`specs[seq]` is what all sites submit; `run` returns when nothing more can happen."""

    rng: random.Random
    n: int
    specs: list[CollectiveSpec]
    chunk_elements: int
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self.sites = [SiteMachine("job", k, names(self.n)) for k in range(self.n)]
        self.time = 0.0
        self.coordinator = CoordinatorMachine("job", names(self.n), clock=lambda: self.time)
        self.coordinator.announce_ahead(self.options.ahead)
        self.early = 0  # collectives begun where not every site was ready yet
        self.chunks: list[tuple[int, ChunkMessage, bytes]] = []
        self.control: dict[tuple[int, int], deque[Any]] = {}
        self.missing_parts: list[tuple[int, int, int]] = []
        self.results: dict[tuple[int, int, int], dict[int, Payload]] = {}
        self.completed: list[set[int]] = [set() for _ in range(self.n)]
        self.failed: list[dict[int, str]] = [{} for _ in range(self.n)]
        self.depths = [self.rng.randint(1, self.options.depth) for _ in range(self.n)]
        self.lost: set[int] = set()
        self.most_installed = self.most_retained = 0
        self.given: list[dict[int, Any]] = [{} for _ in range(self.n)]  # policies that came to a site, by version
        self.steps = 0
        self.transfers = 0
        self.versions: dict[int, set[int]] = {}

    # ---- contributions and expected results

    def contribution(self, site: int, seq: int, part: int) -> np.ndarray:
        """Whole numbers small enough for every type and sum; the same at every call."""
        spec = self.specs[seq]
        source = np.random.default_rng([seq, part, site])
        return source.integers(0, 6, spec.parts[part].elements).astype(spec.dtype)

    def contributors(self, seq: int, part: int) -> list[int]:
        named = self.specs[seq].parts[part].contributors
        return list(range(self.n)) if named is None else sorted(named)

    def expected(self, seq: int, part: int) -> np.ndarray:
        first, *others = (self.contribution(k, seq, part) for k in self.contributors(seq, part))
        for other in others:
            first = combine_arrays(self.specs[seq].op or "", first, other)
        return first

    def source(self, site: int, seq: int) -> Callable[[Chunk], Payload]:
        asked: set[int] = set()

        def give(chunk: Chunk) -> Payload:
            # After a change of plan inside the collective what nobody has begun is cut anew.
            assert chunk.index not in asked or self.options.switch, "a contribution is asked for once"
            asked.add(chunk.index)
            if self.options.ghosts:
                return GhostPayload.of(site, chunk.size * item_size(self.specs[seq].dtype))
            whole = self.contribution(site, seq, chunk.part)
            piece = whole[chunk.offset : chunk.offset + chunk.size]
            if self.rng.random() < 0.5:
                return ArrayPayload(piece, owned=True)
            piece.flags.writeable = False
            return ArrayPayload(piece)

        return give

    # ---- what may happen next

    def run(self, limit: int = 200_000) -> None:
        while choices := self._choices():
            self.steps += 1
            assert self.steps < limit, "the world does not come to rest"
            if self.options.lose_site_after == self.steps:
                self._lose_a_site()
            else:
                self.rng.choice(choices)()

    def _choices(self) -> list[Callable[[], None]]:
        able: list[Callable[[], None]] = []
        for site, machine in enumerate(self.sites):
            if site in self.lost or machine.aborted is not None:
                continue
            if machine.next_seq < len(self.specs) and len(machine.in_flight) < self.depths[site]:
                able.append(lambda site=site: self._begin(site))
        able += [
            lambda link=link: self._control_arrives(link) for link, queue in self.control.items() if queue
        ]
        if self.chunks:
            able += [self._chunk_arrives] * 3
        # Leases of transfers end when nothing else can happen, and now and then too early.
        ends = self.coordinator.next_deadline
        if ends is not None and (
            not able or (self.rng.random() < self.options.leases_end and self._may_end_early())
        ):
            able.append(self._lease_ends)
        if self.missing_parts:
            able.append(self._contribute_late)
        if self.coordinator.aborted is None:
            planless = self.coordinator.policy is None and self.coordinator._pending is None
            if planless or (able and self.rng.random() < self.options.replan / 4):
                able.append(self._replan)
            if self.coordinator.next_seq and able and self.rng.random() < self.options.switch:
                able.append(self._switch)
            if able and self.rng.random() < self.options.change_ahead:
                able.append(self._change_ahead)
        return able

    def _switch(self) -> None:
        seq = self.rng.randrange(self.coordinator.next_seq)
        plan = random_plan(self.rng, self.n)
        paths = {(u, v): self.rng.randrange(8) for u in range(self.n) for v in range(self.n)}
        self.announce(self.coordinator.replan_within(seq, plan, self.chunk_elements, paths))

    def _change_ahead(self) -> None:
        if self._at_rest():
            for action in self.coordinator.settle_anew():
                self.execute(action.dst, self.sites[action.dst].on_message(action.message))
        self.announce(self.coordinator.announce_ahead(self.rng.choice((0, 1, 2, 4))))

    def _at_rest(self) -> bool:
        return not any(self.control.values()) and not any(machine.in_flight for machine in self.sites)

    def _may_end_early(self) -> bool:
        """Time does not run away: few failures in a row, and whoever is asked has time to answer."""
        transfers = self.coordinator.transfers
        return (
            transfers is not None
            and not any(out is not None and out.cancelling for out in transfers._under_way)
            and max(transfers._failures) < 2
        )

    def _lease_ends(self) -> None:
        ends = self.coordinator.next_deadline
        assert ends is not None
        self.time = max(self.time, ends)
        self.announce(self.coordinator.on_time())

    def _begin(self, site: int) -> None:
        machine = self.sites[site]
        seq = machine.next_seq
        spec = self.specs[seq]
        if self.rng.random() < self.options.late_contributions:
            actions = machine.begin(seq, spec)
            for part in range(len(spec.parts)):
                if site in self.contributors(seq, part):
                    self.missing_parts.append((site, seq, part))
        else:
            actions = machine.begin(seq, spec, self.source(site, seq))
        self.execute(site, actions)

    def _contribute_late(self) -> None:
        site, seq, part = self.missing_parts.pop(self.rng.randrange(len(self.missing_parts)))
        if site not in self.lost:
            self.execute(site, self.sites[site].contribute(seq, part, self.source(site, seq)))

    def _replan(self) -> None:
        plan = random_plan(self.rng, self.n)
        paths = {(u, v): self.rng.randrange(8) for u in range(self.n) for v in range(self.n)}
        for action in self.coordinator.set_plan(plan, self.chunk_elements, paths):
            self._post((COORDINATOR, action.dst), action.message)

    def _chunk_arrives(self) -> None:
        index = self.rng.randrange(len(self.chunks))
        self.chunks[index], self.chunks[-1] = self.chunks[-1], self.chunks[index]
        dst, message, sent = self.chunks[-1]
        if self.rng.random() >= self.options.duplicate:
            self.chunks.pop()
        if dst in self.lost:
            return
        payload = message.payload
        if isinstance(payload, ArrayPayload):
            # A partial sum whose lease has ended is discarded, so its bytes may change.
            given_up = self.options.leases_end and message.direction == "up"
            unchanged = payload.array.tobytes() == sent
            assert unchanged or given_up, "the bytes of a message changed while it was under way"
            message = replace(message, payload=ArrayPayload(payload.array.copy(), owned=True))
        self.execute(dst, self.sites[dst].on_message(message))

    def _control_arrives(self, link: tuple[int, int]) -> None:
        queue = self.control[link]
        if link[0] == COORDINATOR and self.rng.random() < self.options.overtake:
            # Only announcements: the rest relies on the order of its connection.
            places = [k for k, plain in enumerate(queue) if plain["type"] == "announce"]
            if places:
                place = self.rng.choice(places)
                queue.appendleft(queue[place])
                del queue[place + 1]
        message = control_from_dict(queue.popleft())
        src, dst = link
        if src in self.lost or dst in self.lost:
            return
        if dst == COORDINATOR:
            for action in self.coordinator.on_message(message):  # type: ignore[arg-type]
                self._post((COORDINATOR, action.dst), action.message)
        else:
            if (policy := getattr(message, "policy", None)) is not None:
                self.given[dst].setdefault(policy.version, policy)
            self.execute(dst, self.sites[dst].on_message(message))  # type: ignore[arg-type]

    def _lose_a_site(self) -> None:
        site = self.rng.randrange(self.n)
        self.lost.add(site)
        self.announce(self.coordinator.site_lost(site, "connection reset"))

    # ---- executing actions

    def announce(self, actions: list[SendToSite]) -> None:
        for action in actions:
            self._post((COORDINATOR, action.dst), action.message)

    def _post(self, link: tuple[int, int], message: Any) -> None:
        queue = self.control.setdefault(link, deque())
        queue.append(control_to_dict(message))
        if self.rng.random() < self.options.duplicate:
            queue.append(control_to_dict(message))

    def execute(self, site: int, actions: list[SiteAction]) -> None:
        for action in actions:
            match action:
                case Send(dst, message, path, _):
                    self.early += message.seq >= self.coordinator.next_seq
                    self.versions.setdefault(message.seq, set()).add(message.version)
                    policy = self.given[site][message.version]
                    assert path == policy.hop_paths[site, dst]
                    payload = message.payload
                    sent = payload.array.tobytes() if isinstance(payload, ArrayPayload) else b""
                    if policy.plan.transfers is not None and policy.per_transfer(self.specs[message.seq]):
                        if self.rng.random() < self.options.lose_transfers:
                            continue
                        self.transfers += 1
                    self.chunks.append((dst, message, sent))
                case SendControl(message):
                    self._post((site, COORDINATOR), message)
                case Deliver(seq, chunk, payload):
                    self._delivered(site, seq, chunk, payload)
                case Complete(seq):
                    self._completed(site, seq)
                case Failed(seq, cause):
                    assert seq not in self.completed[site]
                    assert seq not in self.failed[site]
                    self.failed[site][seq] = cause
        self.most_installed = max(self.most_installed, len(self.sites[site].installed))
        self.most_retained = max(self.most_retained, len(self.coordinator.retained))

    def _delivered(self, site: int, seq: int, chunk: Chunk, payload: Payload) -> None:
        assert seq not in self.completed[site]
        pieces = self.results.setdefault((site, seq, chunk.part), {})
        assert chunk.offset not in pieces, "a chunk is delivered once"
        pieces[chunk.offset] = payload
        if isinstance(payload, GhostPayload):
            payload.assert_exact(self.contributors(seq, chunk.part))
            assert payload.nbytes == chunk.size * item_size(self.specs[seq].dtype)
        else:
            assert isinstance(payload, ArrayPayload)
            wanted = self.expected(seq, chunk.part)[chunk.offset : chunk.offset + chunk.size]
            assert payload.array.dtype == wanted.dtype
            assert payload.array.tobytes() == wanted.tobytes()

    @property
    def switched(self) -> int:
        """Changes of plan inside a collective that took effect at some site."""
        return sum(len(versions) - 1 for versions in self.versions.values())

    def _completed(self, site: int, seq: int) -> None:
        assert seq not in self.completed[site]
        self.completed[site].add(seq)
        size_of = item_size(self.specs[seq].dtype)
        for number, part in enumerate(self.specs[seq].parts):
            pieces = self.results.pop((site, seq, number), {})
            wants = part.targets is None or site in part.targets
            delivered = sum(payload.nbytes for payload in pieces.values())
            assert delivered == (part.elements * size_of if wants else 0)

    # ---- the end

    def check_finished(self) -> None:
        """Every collective is complete everywhere and nothing is left behind."""
        for site, machine in enumerate(self.sites):
            assert self.completed[site] == set(range(len(self.specs))), str(
                machine.waiting_for(machine.completed_below)
            )
            assert machine.completed_below == len(self.specs)
            assert (machine.in_flight, machine.held) == ((), 0)
            assert not machine._completed_above
        assert self.coordinator.next_seq == len(self.specs)
        assert not self.coordinator._ready
