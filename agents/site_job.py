"""One job at one site: its workers, its protocol machine, and the collectives under way.

A collective goes: every worker of this site calls it; the site combines its workers' arrays; the machine
(`agents.sync.site_machine`) asks for its release, sends and receives chunks and delivers results into the
workers' memory; when nothing of it is left, and no worker's memory still waits to be sent, the workers are
told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from agents.calls import LentPayload, LocalCollective, Ranks, call_from_header
from agents.chunk_frames import chunk_header, chunk_message
from agents.histogram import Histogram
from agents.job import CAUSE, CONSEQUENCE, WAITS_FOR_RELEASE, JobDescription
from agents.lanes import Order
from agents.local_server import WorkerLink
from agents.site_messages import SiteMessages
from agents.site_network import NetworkHost, SiteNetwork
from agents.sync.actions import Complete, Deliver, Failed, Send, SendControl, SiteAction
from agents.sync.messages import Abort, ChunkMessage, Release, ToSite, control_to_dict
from agents.sync.payload import ArrayPayload
from agents.sync.site_machine import SiteMachine
from agents.wire import Frame, Header, ProtocolError
from topologies.errors import StormbedError, UsageError


class Host(NetworkHost, Protocol):
    """What a job needs of its agent."""

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
    ) -> None: ...


@dataclass(slots=True)
class JobCounters:
    """What the metrics show of a job."""

    collectives: int = 0
    result_bytes: int = 0
    segment: str = ""
    scheduler: str = ""
    iteration: int = -1
    synchronisation: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class _Worker:
    index: int
    rank: int
    link: WorkerLink
    next_seq: int = 0
    asking: bool = False
    left: bool = False


@dataclass(slots=True)
class _UnderWay:
    local: LocalCollective
    timer: asyncio.TimerHandle
    ready_ns: int = 0
    prepared: bool = False
    machine_done: bool = False
    lent: int = 0


class SiteJob:
    """See the module's text. All methods run on the agent's loop.

    Args:
        job: what was opened.
        site: this site's place among the job's sites.
        host: the agent.
    """

    def __init__(self, job: JobDescription, site: int, host: Host) -> None:
        self.job = job
        self.site = site
        self.ranks = Ranks.of(job.workers)
        self.machine = SiteMachine(job.name, site, job.site_names)
        self.counters = JobCounters()
        self.held_bytes = 0
        self.held_chunks = 0
        self.ending = False
        self.failure: str | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._workers: dict[int, _Worker] = {}
        self._under_way: dict[int, _UnderWay] = {}
        self._held: dict[int, int] = {}
        self.network = SiteNetwork(job, site, host)
        self.messages = SiteMessages(
            self.ranks, site, job.deadline_s, send=self._send_message, fault=self.fault
        )

    @property
    def name(self) -> str:
        """This site's name."""
        return self.job.site_names[self.site]

    # ---- workers

    def join(self, index: int, link: WorkerLink) -> None:
        """A worker's connection. UsageError when there is no place for it."""
        if self.failure is not None:
            raise UsageError(f"job {self.job.name} has stopped: {self.failure}")
        if not 0 <= index < self.job.workers[self.site]:
            raise UsageError(
                f"{self.name} has no worker {index} in job {self.job.name}",
                hint=f"it has {self.job.workers[self.site]}",
            )
        if index in self._workers:
            raise UsageError(
                f"worker {index} of {self.name} has joined job {self.job.name} already "
                f"(pid {self._workers[index].link.pid})"
            )
        rank = self.ranks.at(self.site)[index]
        self._workers[index] = _Worker(index, rank, link)
        link.send(
            {
                "kind": "joined",
                "rank": rank,
                "sites": self.ranks.site,
                "site_names": self.job.site_names,
                "deadline_s": self.job.deadline_s,
            }
        )
        self._tell("joined", worker=index, pid=link.pid)

    def worker_said(self, index: int, header: Header) -> None:
        """A frame of a joined worker."""
        worker = self._workers[index]
        if self.failure is not None or worker.left:
            return
        try:
            self._dispatch(worker, header)
        except ProtocolError:
            raise
        except (StormbedError, OverflowError) as error:
            self.fault(f"{self._name_of(worker)}: {error}")

    def worker_gone(self, index: int, reason: str) -> None:
        """A worker's connection ended."""
        worker = self._workers[index]
        if worker.left or self.failure is not None:
            return
        if self.ending:
            self._leave(worker)
            return
        self.fault(f"{self._name_of(worker)} ended{': ' + reason if reason else ''}")

    def _dispatch(self, worker: _Worker, header: Header) -> None:
        kind = header.get("kind")
        if kind == "call":
            self._call(worker, header)
        elif kind == "send":
            self.messages.send(worker.rank, worker.link, header)
        elif kind == "recv":
            self.messages.receive(worker.rank, worker.link, header, self._name_of(worker))
        elif kind == "next":
            self._ask(worker)
        elif kind == "progress":
            self._progress(header)
        elif kind == "leave":
            self._leave(worker)
        elif kind == "abort":
            self.fault(f"{self._name_of(worker)}: {header.get('why')}")
        else:
            raise ProtocolError(f"unknown frame {kind!r}")

    def _ask(self, worker: _Worker) -> None:
        if self.ending:
            worker.link.send({"kind": "end"})
            return
        worker.asking = True
        self._tell("asks", worker=worker.index)

    def _progress(self, header: Header) -> None:
        iteration = header.get("iteration")
        if isinstance(iteration, int):
            self.counters.iteration = iteration

    def _leave(self, worker: _Worker) -> None:
        worker.left = True
        worker.asking = False
        waiting = [seq for seq, c in self._under_way.items() if worker.rank in c.local.missing]
        if waiting:
            call = self._under_way[waiting[0]].local.call
            self.fault(f"{self._name_of(worker)} left before collective {waiting[0]} ({call})")
            return
        self._tell("left", worker=worker.index)

    def segment(self, fields: dict[str, Any], scheduler: str, options: dict[str, Any]) -> None:
        """All workers of the job have asked: this is what they run next, under this scheduler.

        `options` are those of `agents.options`, as plain values.
        """
        self.network.configure(options.get("awareness"), options.get("auxiliary"))
        self.counters.segment = str(fields.get("label", ""))
        self.counters.scheduler = scheduler
        self.counters.iteration = -1
        for worker in self._workers.values():
            if worker.asking:
                worker.asking = False
                worker.link.send({"kind": "segment"}, fields)

    def end(self) -> None:
        """There are no more segments."""
        self.ending = True
        for worker in self._workers.values():
            if worker.asking:
                worker.asking = False
                worker.link.send({"kind": "end"})

    # ---- collectives

    def _call(self, worker: _Worker, header: Header) -> None:
        seq = header.get("seq")
        if seq != worker.next_seq:
            raise ProtocolError(f"collective {seq} where {worker.next_seq} was due")
        worker.next_seq += 1
        call = call_from_header(header)
        gone = [w for w in self._workers.values() if w.left]
        if gone:
            raise UsageError(f"called {call}, but worker {gone[0].index} has left the job")
        data, table = call.data_elements(), call.table_elements(worker.rank, self.ranks.world)
        empty = np.empty(0, call.dtype)
        data_array = worker.link.arena.view(header.get("data"), call.dtype, data) if data else empty
        table_array = worker.link.arena.view(header.get("table"), call.dtype, table) if table else empty
        under_way = self._under_way.get(worker.next_seq - 1)
        if under_way is None:
            under_way = self._under_way[seq] = _UnderWay(
                LocalCollective(seq, self.site, self.ranks, len(self.job.members)),
                self._loop.call_later(self.job.deadline_s, self._overdue, seq),
            )
        local = under_way.local
        local.add(worker.rank, call, data_array, table_array)
        if not local.missing:
            under_way.ready_ns = time.monotonic_ns()
            self._begin(seq, under_way)

    def _begin(self, seq: int, under_way: _UnderWay) -> None:
        local = under_way.local
        spec = local.arrange()
        if not local.needs_preparation:
            under_way.prepared = True
            self._run(self.machine.begin(seq, spec, local.source))
            return
        # The release is asked for while this site's workers are still being combined.
        self._run(self.machine.begin(seq, spec))
        self._prepare(seq, under_way, local.prepare())

    def _prepare(self, seq: int, under_way: _UnderWay, steps: Iterator[None]) -> None:
        if self.failure is not None:
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
        for worker in self._workers.values():
            worker.link.send({"kind": "done", "seq": seq})
        self.counters.collectives += 1
        self.counters.synchronisation.observe((time.monotonic_ns() - under_way.ready_ns) / 1e9)

    def _lent_sent(self, seq: int) -> None:
        under_way = self._under_way.get(seq)
        if under_way is not None:
            under_way.lent -= 1
            self._finish_if_done(seq)

    # ---- the machine

    def control(self, message: ToSite) -> None:
        """The coordinator's word."""
        if self.failure is not None:
            return
        if isinstance(message, Abort):
            self.fail(message.cause)
            return
        if isinstance(message, Release) or message.verb == "switch":
            self.held_bytes -= self._held.pop(message.seq, 0)
        self._feed(message)
        self.held_chunks = self.machine.held

    def chunk(self, header: Header, payload: memoryview) -> None:
        """A chunk from another site."""
        if self.failure is not None:
            return
        message = chunk_message(self.job.name, header, payload)
        self._feed(message)
        if self.machine.held > self.held_chunks:
            self._held[message.seq] = self._held.get(message.seq, 0) + len(payload)
            self.held_bytes += len(payload)
            self.held_chunks += 1

    def _feed(self, message: ChunkMessage | ToSite) -> None:
        try:
            self._run(self.machine.on_message(message))
        except StormbedError as error:
            self.fault(f"{self.name}: {error}")

    def _run(self, actions: list[SiteAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send_chunk(action)
            elif isinstance(action, Deliver):
                payload = action.payload
                assert isinstance(payload, ArrayPayload)
                self._under_way[action.seq].local.deliver(action.chunk, payload.array)
                self.counters.result_bytes += payload.nbytes
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
        header = chunk_header(self.job.wire, message, payload)
        sent: Callable[[], None] | None = None
        if isinstance(payload, LentPayload):
            seq = message.seq
            self._under_way[seq].lent += 1

            def sent() -> None:
                self._lent_sent(seq)

        peer = self.job.members[send.dst]
        path = self.network.choose(peer, send.path)
        if path != send.path:
            header["auxiliary"] = True
        self._host.send_frame(
            peer,
            path,
            header,
            payload.array,
            order=send.priority,
            owner=self.job.wire,
            sent=sent,
            stamp=self.network.stamping,
        )

    # ---- messages

    def message(self, frame: Frame) -> None:
        """A message from a worker of another site."""
        if self.failure is not None:
            return
        try:
            self.messages.arrived(frame)
        except StormbedError as error:
            self.fault(str(error))

    def _send_message(self, site: int, header: Header, payload: memoryview, sent: Callable[[], None]) -> None:
        frame = {**header, "job": self.job.wire}
        peer = self.job.members[site]
        self._host.send_frame(peer, 0, frame, payload, order=(), owner=self.job.wire, sent=sent)

    # ---- endings

    def fault(self, cause: str, telling: int = CAUSE) -> None:
        """Ask the coordinator to stop the job everywhere."""
        if self.failure is None:
            self._tell("fault", cause=cause, telling=telling)

    def connection_lost(self, peer: int, reason: str) -> None:
        """A data connection with another site ended. What it carried may be missing for ever."""
        if peer in self.job.members and (self._under_way or self.messages.waiting):
            other = self.job.site_names[self.job.members.index(peer)]
            self.fault(f"the connection between {self.name} and {other} was lost: {reason}", CONSEQUENCE)

    def fail(self, cause: str) -> None:
        """The job has stopped: tell the workers and forget everything."""
        if self.failure is not None:
            return
        self.failure = cause
        self.machine.on_message(Abort(self.job.name, cause))
        for worker in self._workers.values():
            worker.link.send({"kind": "failed", "why": cause})
        self._forget()

    def close(self) -> None:
        """The job is over."""
        self._forget()
        for worker in self._workers.values():
            worker.link.close()

    def _forget(self) -> None:
        for under_way in self._under_way.values():
            under_way.timer.cancel()
        self._under_way.clear()
        self.messages.forget()
        self.network.close()
        self._held.clear()
        self.held_bytes = self.held_chunks = 0

    def _overdue(self, seq: int) -> None:
        under_way = self._under_way[seq]
        late = under_way.local.missing
        call, seconds = under_way.local.call, f"{self.job.deadline_s:g} s"
        if late:
            absent = ", ".join(f"worker {self.ranks.worker[rank]} of {self.name}" for rank in late)
            self.fault(f"{absent} did not call collective {seq} ({call}) within {seconds} of the others")
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
            self.fault(f"{self.name} could not send its part of collective {seq} ({call}) in {seconds}")

    def _name_of(self, worker: _Worker) -> str:
        return f"worker {worker.index} of {self.name} (pid {worker.link.pid})"

    def _tell(self, kind: str, **body: Any) -> None:
        self._host.tell_coordinator(kind, {"job": self.job.wire, **body})
