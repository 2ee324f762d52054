"""One job at one site: its workers and what they say, segments, and how it ends.

What the workers call together is done by `agents.site_collectives`, what they send each other by
`agents.site_messages`, and the network is followed by `agents.site_network`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agents.calls import Ranks, call_from_header
from agents.job import CAUSE, CONSEQUENCE, JobDescription
from agents.local_server import WorkerLink
from agents.site_collectives import FrameSender, SiteCollectives
from agents.site_messages import SiteMessages
from agents.site_network import NetworkHost, SiteNetwork
from agents.sync.messages import Abort, ToSite
from agents.wire import Frame, Header, ProtocolError
from topologies.errors import StormbedError, UsageError


class Host(NetworkHost, FrameSender, Protocol):
    """What a job needs of its agent."""

    def collective_ready(self, job: JobDescription, seq: int) -> None:
        """All workers of the site have called a collective."""

    def collective_done(self, job: JobDescription, seq: int) -> None:
        """The site has all results of a collective."""


@dataclass(slots=True)
class JobProgress:
    """What the workers run, for the metrics."""

    segment: str = ""
    scheduler: str = ""
    iteration: int = -1


@dataclass(slots=True)
class _Worker:
    index: int
    rank: int
    link: WorkerLink
    next_seq: int = 0
    asking: bool = False
    left: bool = False


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
        self.progress = JobProgress()
        self.ending = False
        self.failure: str | None = None
        self._host = host
        self._workers: dict[int, _Worker] = {}
        self.network = SiteNetwork(job, site, host)
        self.collectives = SiteCollectives(
            job,
            site,
            self.ranks,
            sender=host,
            network=self.network,
            tell=self._tell,
            done=self._collective_done,
            ready=lambda seq: host.collective_ready(job, seq),
        )
        self.messages = SiteMessages(self.ranks, site, job.deadline_s, send=self._send_message, fault=self.fault)

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
            self.progress.iteration = iteration

    def _leave(self, worker: _Worker) -> None:
        worker.left = True
        worker.asking = False
        waiting = self.collectives.waiting_for(worker.rank)
        if waiting is not None:
            seq, call = waiting
            self.fault(f"{self._name_of(worker)} left before collective {seq} ({call})")
            return
        self._tell("left", worker=worker.index)

    def segment(self, fields: dict[str, Any], scheduler: str, options: dict[str, Any]) -> None:
        """All workers of the job have asked: this is what they run next, under this scheduler.

        `options` are those of `agents.options`, as plain values.
        """
        seed = fields.get("seed", 0)
        self.network.configure(options.get("awareness"), options.get("auxiliary"), seed)
        self.progress.segment = str(fields.get("label", ""))
        self.progress.scheduler = scheduler
        self.progress.iteration = -1
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
        self.collectives.add(worker.next_seq - 1, worker.rank, call, data_array, table_array)

    def _collective_done(self, seq: int) -> None:
        for worker in self._workers.values():
            worker.link.send({"kind": "done", "seq": seq})
        self._host.collective_done(self.job, seq)

    def control(self, message: ToSite) -> None:
        """The coordinator's word."""
        if self.failure is not None:
            return
        if isinstance(message, Abort):
            self.fail(message.cause)
        else:
            self.collectives.control(message)

    def chunk(self, header: Header, payload: memoryview) -> None:
        """A chunk from another site."""
        if self.failure is None:
            self.collectives.chunk(header, payload)

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
        if peer in self.job.members and (self.collectives or self.messages.waiting):
            other = self.job.site_names[self.job.members.index(peer)]
            self.fault(f"the connection between {self.name} and {other} was lost: {reason}", CONSEQUENCE)

    def fail(self, cause: str) -> None:
        """The job has stopped: tell the workers and forget everything."""
        if self.failure is not None:
            return
        self.failure = cause
        self.collectives.stop(cause)
        for worker in self._workers.values():
            worker.link.send({"kind": "failed", "why": cause})
        self._forget()

    def close(self) -> None:
        """The job is over."""
        self._forget()
        for worker in self._workers.values():
            worker.link.close()

    def _forget(self) -> None:
        self.collectives.forget()
        self.messages.forget()
        self.network.close()

    def _name_of(self, worker: _Worker) -> str:
        return f"worker {worker.index} of {self.name} (pid {worker.link.pid})"

    def _tell(self, kind: str, **body: Any) -> None:
        self._host.tell_coordinator(kind, {"job": self.job.wire, **body})
