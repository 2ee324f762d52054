"""The daemon of a site: workers on one side, the other sites' agents on the other, the coordinator above.

Memory and back-pressure. An agent keeps chunks that come before their collective is released here, because
the release travels another way (management network) and may be overtaken. Above `HOLD_BYTES` of them it stops
reading from all peers until the releases have come. That cannot lock up: a peer sends such a chunk only after
its own release, so the coordinator has released the collective already, and the release that ends the wait
arrives on the control connection, which is always read. Nothing else makes an agent stop reading: partial
sums take no more memory than the tensors in flight, and messages between workers, which may rightly wait for
a later `recv`, are limited by `agents.mailbox` instead. Chunks of a collective that is settled ahead (policies
announced without barrier) wait for this site's own workers, who may wait for other chunks: they are not
counted here, but bounded by the number of collectives that a site may be ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from agents.chunk_frames import KIND as CHUNK
from agents.coflow_site import CoflowSite
from agents.config import Config
from agents.coordinator_link import CoordinatorLink
from agents.job import JobDescription
from agents.link_state import NetworkNow
from agents.local_server import SOCKET_NAME, LocalServer, WorkerLink
from agents.metrics.agent import AgentCollector
from agents.metrics.server import Server as MetricsServer
from agents.placement import Order
from agents.site_job import SiteJob
from agents.site_network import PROBE
from agents.sync.messages import ToSite, control_from_dict
from agents.transport import Transport
from agents.wire import VERSION, Frame, Header, ProtocolError, fresh_buffer
from topologies.errors import StormbedError

log = logging.getLogger(__name__)

HOLD_BYTES: Final = 256 * 1024 * 1024


class Agent:
    """One site's agent. Create and use it on a running asyncio loop.

    Args:
        config: the network and the addresses.
        site: index of the site.
    """

    def __init__(self, config: Config, site: int) -> None:
        self.config = config
        self.site = site
        self.name = config.topology.site_names[site]
        self.jobs: dict[str, SiteJob] = {}  # by wire name
        self.now = NetworkNow(config)
        self.late_frames = 0
        self.failed_jobs = 0
        self._open: dict[str, SiteJob] = {}  # by the runner's name: what workers may join
        self._workers: dict[WorkerLink, tuple[SiteJob, int]] = {}
        self._early: dict[WorkerLink, Header] = {}  # joins of jobs that are not open yet
        self.transport = Transport(
            site, dict(enumerate(config.addresses.data)), self, first_hops=config.first_hops(site)
        )
        self.coflows = CoflowSite(site, self.transport)
        self.coordinator = CoordinatorLink(
            config.addresses.coordinator, site, self._coordinator_said, self._coordinator_lost
        )
        self._local = LocalServer(config.run_dir / "sites" / self.name / SOCKET_NAME, self)
        self._metrics = MetricsServer(AgentCollector(self))

    async def start(self) -> None:
        """Listen for peers and workers, dial the coordinator. Raises OSError naming an address it cannot

        use.
        """
        await self.transport.start()
        try:
            self._local.start()
            endpoint = self.config.addresses.metrics[self.site]
            if endpoint is not None:
                await self._metrics.start(endpoint)
        except OSError:
            await self.close()
            raise
        self.coordinator.start()

    async def close(self) -> None:
        """End all connections; workers of open jobs are told."""
        for job in self.jobs.values():
            job.fail(f"the agent of {self.name} was stopped")
        await self.coordinator.close()
        await self.coflows.close()
        self._local.close()
        await self.transport.close()
        await self._metrics.close()

    # ---- the other agents (transport.Receiver)

    def place(self, peer: int, header: Header, nbytes: int) -> memoryview:
        job = self.jobs.get(header.get("job", ""))
        if job is not None and job.failure is None and header.get("kind") == "message":
            try:
                return job.messages.place(header, nbytes)
            except ProtocolError:
                raise
            except StormbedError as error:
                job.fault(f"{self.name}: {error}")
        return fresh_buffer(header, nbytes)

    def arrived(self, peer: int, path: int, frame: Frame) -> None:
        header = frame.header
        job = self.jobs.get(header.get("job", ""))
        if job is None:
            # A job is open at all sites before its workers run, so this one is over.
            self.late_frames += 1
        elif header.get("kind") == CHUNK:
            job.network.observe(peer, path, header, len(frame.payload))
            job.chunk(header, frame.payload)
            if job.collectives.held_bytes:
                self._hold()
        elif header.get("kind") == "message":
            job.message(frame)
        elif header.get("kind") == PROBE:
            job.network.observe(peer, path, header, len(frame.payload))
        else:
            raise ProtocolError(f"unknown frame {header}")

    def lost(self, peer: int, path: int, reason: str) -> None:
        log.warning("connection with site %d over path %d lost: %s", peer, path, reason)
        for job in tuple(self.jobs.values()):
            job.connection_lost(peer, reason)

    @property
    def held_bytes(self) -> int:
        """Bytes of chunks whose collective has not started here yet."""
        return sum(job.collectives.held_bytes for job in self.jobs.values())

    def _hold(self) -> None:
        held = sum(job.collectives.unreleased_bytes for job in self.jobs.values())
        if held > HOLD_BYTES:
            self.transport.hold(True)
        elif held < HOLD_BYTES // 2:
            self.transport.hold(False)

    # ---- this site's workers (local_server.LinkOwner)

    def worker_said(self, link: WorkerLink, header: Header) -> None:
        place = self._workers.get(link)
        if place is not None:
            job, index = place
            job.worker_said(index, header)
        elif header.get("kind") == "join" and isinstance(header.get("worker"), int):
            if header.get("version") != VERSION:
                self._refuse(link, f"the agent of {self.name} speaks version {VERSION}")
            elif header.get("job") in self._open:
                self._join(link, header)
            else:
                self._early[link] = header
        elif header.get("kind") == "leave":
            self._early.pop(link, None)
        else:
            raise ProtocolError(f"the first frame is not a join: {header}")

    def worker_gone(self, link: WorkerLink, reason: str) -> None:
        self._early.pop(link, None)
        place = self._workers.pop(link, None)
        if place is not None:
            job, index = place
            job.worker_gone(index, reason)

    def _join(self, link: WorkerLink, header: Header) -> None:
        job = self._open[header["job"]]
        try:
            job.join(header["worker"], link)
        except StormbedError as error:
            self._refuse(link, str(error))
            return
        self._workers[link] = (job, header["worker"])

    def _refuse(self, link: WorkerLink, why: str) -> None:
        link.send({"kind": "failed", "why": why})

    # ---- the coordinator

    def tell_coordinator(self, kind: str, body: dict[str, Any]) -> int:
        return self.coordinator.send(kind, body)

    def _coordinator_said(self, kind: str, body: dict[str, Any]) -> None:
        try:
            if kind == "open":
                self._open_job(JobDescription.from_dict(body))
                return
            if kind == "coflow":
                address = body["address"]
                self.coflows.follow(None if address is None else (str(address[0]), int(address[1])))
                return
            if kind == "refused":
                raise ProtocolError(f"refused by the coordinator: {body['why']}")
            if kind == "routes":
                self._links_changed(body["down"])
                return
            job = self.jobs.get(body["job"])
            if job is None:
                return
            if kind == "go":
                self._open[job.job.name] = job
                for link, header in [(k, v) for k, v in self._early.items() if v["job"] == job.job.name]:
                    del self._early[link]
                    self._join(link, header)
            elif kind == "machine":
                message = control_from_dict(body["message"])
                if not isinstance(message, ToSite):
                    raise ProtocolError(f"not for a site: {body['message']['type']}")
                job.control(message)
                if job.failure is not None:
                    self._drop(job)
                self._hold()
            elif kind == "segment":
                job.segment(body["fields"], str(body["scheduler"]), body["options"])
            elif kind == "detours":
                job.network.allow(body["detours"])
            elif kind == "end":
                job.end()
            elif kind == "close":
                job.close()
                del self.jobs[job.job.wire]
                self._drop(job)
            else:
                raise ProtocolError(f"unknown frame {kind!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"malformed {kind} frame: {error!r}") from None
        except StormbedError as error:
            raise ProtocolError(str(error)) from None

    def _open_job(self, description: JobDescription) -> None:
        site = description.members.index(self.site)
        self.coflows.opened(description)
        job = self.jobs[description.wire] = SiteJob(description, site, self)
        job.network.links_changed(self.now.down)
        self.coordinator.send("opened", {"job": description.wire})

    def _links_changed(self, down: list[int]) -> None:
        """The coordinator's word: these links are down now, by index."""
        self.now.change(down)
        self.transport.lead(self.now.first_hops(self.site))
        for job in self.jobs.values():
            job.network.links_changed(down)

    def _coordinator_lost(self, reason: str) -> None:
        for job in tuple(self.jobs.values()):
            job.fail(f"the agent of {self.name} lost the coordinator: {reason}")
            del self.jobs[job.job.wire]
            self._drop(job)
        self.coflows.follow(None)

    def _drop(self, job: SiteJob) -> None:
        """Nobody may join it any more, and what it left in the queues is not sent."""
        if self._open.get(job.job.name) is job:
            del self._open[job.job.name]
            self.failed_jobs += job.failure is not None
        self.transport.drop(job.job.wire)
        self.coflows.forget(job.job)
        self._hold()

    # ---- a job's host

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
    ) -> None:
        placed = self.coflows.placement(owner) if header.get("kind") == CHUNK else None
        own: dict[str, Any] = {"order": order, "owner": owner, "sent": sent, "stamp": stamp}
        self.transport.send(peer, path, header, payload, cls=cls, placed=placed, **own)

    def collective_ready(self, job: JobDescription, seq: int) -> None:
        self.coflows.ready(job, seq)

    def collective_done(self, job: JobDescription, seq: int) -> None:
        self.coflows.done(job, seq)

    def send_probe(self, peer: int, path: int, header: Header, payload: bytes, owner: str) -> None:
        self.transport.send(peer, path, header, payload, owner=owner, stamp=True)

    def sent_bytes(self, peer: int, path: int) -> int:
        return self.transport.sent_bytes(peer, path)

    def queue_length(self, first_hop: int) -> int:
        return self.transport.queue_length(first_hop)
