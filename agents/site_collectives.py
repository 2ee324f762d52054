"""The collectives of one job at one site: from the workers' arrays to the frames between agents, and back.

Every worker of this site calls a collective; the site combines its workers' arrays; the machine
(`agents.sync.site_machine`) asks for its release, sends and receives chunks and delivers results into the
workers' memory; when nothing of it is left, and no worker's memory still waits to be sent, it is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from agents.calls import Call, LentPayload, LocalCollective, Ranks
from agents.chunk_frames import chunk_header, chunk_message
from agents.histogram import Histogram
from agents.job import CAUSE, CONSEQUENCE, WAITS_FOR_RELEASE, JobDescription
from agents.placement import Order
from agents.site_network import SiteNetwork
from agents.sync.actions import Complete, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.messages import Abort, ChunkMessage, ToSite, control_to_dict
from agents.sync.payload import Array, ArrayPayload
from agents.sync.site_machine import SiteMachine
from agents.wire import Header
from topologies.errors import StormbedError


class FrameSender(Protocol):
    """What collectives and messages need of the agent."""

    def send_frame(
        self,
        peer: int,
        path: int,
        header: Header,
        payload: Any,
        *,
        order: Order,
        owner: str,
        sent: Callable[[], None] | None,
        stamp: bool = False,
        cls: int = 0,
    ) -> None: ...


@dataclass(slots=True)
class _UnderWay:
    local: LocalCollective
    timer: asyncio.TimerHandle
    ready_ns: int = 0
    prepared: bool = False
    machine_done: bool = False
    lent: int = 0


class SiteCollectives:
    """See the module's text. All methods run on the agent's loop.

    Args:
        job, site, ranks: which job, this site's place in it, and which ranks are where.
        sender, network: what frames go out through, and what chooses their paths.
        tell: says something to the coordinator.
        done: told the number of a collective that is over here.
        ready: told the number of one that all workers here have called.

    Attributes:
        completed, result_bytes, synchronisation, chunks_received: for the metrics.
        release_wait: from the last call of this site's workers to the start of the collective.
        held_bytes, held_chunks: chunks whose collective has not started here yet.
    """

    def __init__(
        self,
        job: JobDescription,
        site: int,
        ranks: Ranks,
        *,
        sender: FrameSender,
        network: SiteNetwork,
        tell: Callable[..., None],
        done: Callable[[int], None],
        ready: Callable[[int], None] = lambda seq: None,
    ) -> None:
        self.machine = SiteMachine(job.name, site, job.site_names)
        self.completed = self.result_bytes = 0
        self.synchronisation = Histogram()
        self.release_wait = Histogram()
        self.chunks_received = 0
        self.held_bytes = self.held_chunks = 0
        self._job = job
        self._site = site
        self._name = job.site_names[site]
        self._ranks = ranks
        self._sender = sender
        self._network = network
        self._tell = tell
        self._done = done
        self._ready = ready
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, _UnderWay] = {}
        self._held: dict[int, int] = {}
        self._unstarted: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether any is under way."""
        return bool(self._under_way)

    # ---- this site's workers

    def add(self, seq: int, rank: int, call: Call, data: Array, table: Array) -> None:
        """A worker's part in collective `seq`; it begins with the last one's. UsageError when they differ."""
        under_way = self._under_way.get(seq)
        if under_way is None:
            under_way = self._under_way[seq] = _UnderWay(
                LocalCollective(seq, self._site, self._ranks, len(self._job.members)),
                self._loop.call_later(self._job.deadline_s, self._overdue, seq),
            )
        local = under_way.local
        local.add(rank, call, data, table)
        if not local.missing:
            under_way.ready_ns = time.monotonic_ns()
            self._ready(seq)
            self._begin(seq, under_way)

    def waiting_for(self, rank: int) -> tuple[int, Call | None] | None:
        """The first collective that has been called by others here, but not by this rank, and its number."""
        for seq, under_way in self._under_way.items():
            if rank in under_way.local.missing:
                return seq, under_way.local.call
        return None

    def _begin(self, seq: int, under_way: _UnderWay) -> None:
        local = under_way.local
        spec = local.arrange()
        self._unstarted[seq] = under_way.ready_ns
        if not local.needs_preparation:
            under_way.prepared = True
            self._run(self.machine.begin(seq, spec, local.source))
            self._look_at_held()
            return
        # The release is asked for while this site's workers are still being combined.
        self._run(self.machine.begin(seq, spec))
        self._look_at_held()
        self._prepare(seq, under_way, local.prepare())

    def _prepare(self, seq: int, under_way: _UnderWay, steps: Iterator[None]) -> None:
        if self._under_way.get(seq) is not under_way:
            return
        if next(steps, self) is not self:
            self._loop.call_soon(self._prepare, seq, under_way, steps)
            return
        under_way.prepared = True
        for part in under_way.local.own_parts:
            self._run(self.machine.contribute(seq, part, under_way.local.source))
        self._finish_if_done(seq)

    def _finish_if_done(self, seq: int) -> None:
        under_way = self._under_way.get(seq)
        if under_way is None or not (under_way.machine_done and under_way.prepared) or under_way.lent:
            return
        del self._under_way[seq]
        under_way.timer.cancel()
        self._done(seq)
        self.completed += 1
        self.synchronisation.observe((time.monotonic_ns() - under_way.ready_ns) / 1e9)

    def _lent_sent(self, seq: int) -> None:
        under_way = self._under_way.get(seq)
        if under_way is not None:
            under_way.lent -= 1
            self._finish_if_done(seq)

    # ---- the other sites and the coordinator

    def control(self, message: ToSite) -> None:
        """The coordinator's word."""
        self._feed(message)
        self._look_at_held()

    def chunk(self, header: Header, payload: memoryview) -> None:
        """A chunk from another site."""
        message = chunk_message(self._job.name, header, payload)
        self.chunks_received += 1
        self._feed(message)
        if self.machine.held > self.held_chunks:
            self._held[message.seq] = self._held.get(message.seq, 0) + len(payload)
            self.held_bytes += len(payload)
            self.held_chunks += 1

    @property
    def unreleased_bytes(self) -> int:
        """Of the held bytes, those of collectives that only the coordinator's word can start. The others
        wait for this site's own workers, and are bounded by how far ahead a site may be.
        """
        return sum(count for seq, count in self._held.items() if seq >= self.machine.settled_below)

    def _look_at_held(self) -> None:
        """Some collectives may have started."""
        for seq in [seq for seq in self._held if not self.machine.holds(seq)]:
            self.held_bytes -= self._held.pop(seq)
        self.held_chunks = self.machine.held
        now = time.monotonic_ns()
        for seq in [seq for seq in self._unstarted if self.machine.started(seq)]:
            self.release_wait.observe((now - self._unstarted.pop(seq)) / 1e9)

    def _feed(self, message: ChunkMessage | ToSite) -> None:
        try:
            self._run(self.machine.on_message(message))
        except StormbedError as error:
            self._fault(f"{self._name}: {error}")

    def _run(self, actions: list[SiteAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send_chunk(action)
            elif isinstance(action, Deliver):
                payload = action.payload
                assert isinstance(payload, ArrayPayload)
                self._under_way[action.seq].local.deliver(action.chunk, payload.array)
                self.result_bytes += payload.nbytes
            elif isinstance(action, SendControl):
                self._tell("machine", message=control_to_dict(action.message))
            elif isinstance(action, Complete):
                self._under_way[action.seq].machine_done = True
                self._finish_if_done(action.seq)
            else:
                assert isinstance(action, Failed)  # told to the workers by `fail`, once for the whole job

    def _send_chunk(self, send: Send) -> None:
        message, payload = send.message, send.message.payload
        assert isinstance(payload, ArrayPayload)
        header = chunk_header(self._job.wire, message, payload)
        sent: Callable[[], None] | None = None
        if isinstance(payload, LentPayload):
            seq = message.seq
            self._under_way[seq].lent += 1

            def sent() -> None:
                self._lent_sent(seq)

        peer = self._job.members[send.dst]
        path = self._network.choose(peer, send.path)
        if path != send.path:
            header["auxiliary"] = True
        self._sender.send_frame(
            peer,
            path,
            header,
            payload.array,
            order=send.priority,
            owner=self._job.wire,
            sent=sent,
            stamp=self._network.stamping,
            cls=send.cls,
        )

    # ---- endings

    def stop(self, cause: str) -> None:
        """The job has stopped."""
        self.machine.on_message(Abort(self._job.name, cause))
        self.forget()

    def forget(self) -> None:
        """The job is over."""
        for under_way in self._under_way.values():
            under_way.timer.cancel()
        self._under_way.clear()
        self._held.clear()
        self._unstarted.clear()
        self.held_bytes = self.held_chunks = 0

    def _overdue(self, seq: int) -> None:
        under_way = self._under_way[seq]
        late = under_way.local.missing
        call, seconds = under_way.local.call, f"{self._job.deadline_s:g} s"
        if late:
            absent = ", ".join(f"worker {self._ranks.worker[rank]} of {self._name}" for rank in late)
            self._fault(f"{absent} did not call collective {seq} ({call}) within {seconds} of the others")
        elif not under_way.machine_done:
            waiting = self.machine.waiting_for(seq)
            telling = CONSEQUENCE if waiting.sites else WAITS_FOR_RELEASE
            self._tell(
                "fault",
                cause=f"waited {seconds} for {waiting}",
                telling=telling,
                seq=seq,
                sites=waiting.sites,
            )
        else:
            self._fault(f"{self._name} could not send its part of collective {seq} ({call}) in {seconds}")

    def _fault(self, cause: str) -> None:
        self._tell("fault", cause=cause, telling=CAUSE)
