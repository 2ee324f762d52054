"""A site's part in the order of coflows: it tells a coordinator what its jobs do, and does as the map says.

The coflow coordinator is not the jobs' own: when it is gone, the last map stays in force and nothing stops.
Only the runner's word, or the end of its connection, takes the map away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agents.coflow.base import CoflowError
from agents.coflow.levels import LevelMap, Place
from agents.coordinator_link import CoordinatorLink
from agents.job import JobDescription
from agents.lanes import NOTSENT_LOWAT
from agents.placement import Placement, Waiting
from agents.wire import ProtocolError

# What the kernel is given beyond what it can send at once, while an order is in force. More would be out of
# reach of the next map.
UNSENT_BYTES: Final = 64 * 1024
REPORT_SECONDS: Final = 0.1
NO_RANK: Final = 1 << 30


class Lanes(Protocol):
    """What is needed of the transport."""

    on_left: Callable[[Waiting], None]

    def arrange(self, place: Callable[[str], Placement], *, gated: bool, notsent_bytes: int) -> None: ...


@dataclass(slots=True)
class _Coflow:
    seq: int
    nbytes: int = 0
    told: int = 0
    wait_ns: int = 0
    chunks: int = 0


class CoflowSite:
    """See the module's text. All methods run on the agent's loop.

    Args:
        site: index of the site.
        lanes: the agent's transport.

    Attributes:
        map: the newest map, or None while no coordinator is followed.
        gate_wait_ns, gated_chunks: what placed chunks have waited before they left, and how many there were.
    """

    def __init__(self, site: int, lanes: Lanes) -> None:
        self.map: LevelMap | None = None
        self.gate_wait_ns = self.gated_chunks = 0
        self._site = site
        self._lanes = lanes
        self._loop = asyncio.get_running_loop()
        self._link: CoordinatorLink | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._names: dict[str, str] = {}  # the runner's name of an open job, by its name on the wire
        self._streams: dict[str, int] = {}
        self._under_way: dict[str, _Coflow] = {}
        self._timer: asyncio.TimerHandle | None = None
        lanes.on_left = self._left

    @property
    def connected(self) -> bool:
        """Whether the coflow coordinator is reached now."""
        return self._link is not None and self._link.connected

    # ---- the runner's word

    def follow(self, address: tuple[str, int] | None) -> None:
        """Do as the coordinator at this address says from now on; None: no order at all."""
        if self._link is not None:
            task = self._loop.create_task(self._link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._link = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._under_way.clear()
        if self.map is not None:
            self.map = None
            self._apply()
        if address is not None:
            self._link = CoordinatorLink(address, self._site, self._said, lambda reason: None, "coflow coordinator")
            self._link.start()
            self._report()

    async def close(self) -> None:
        self.follow(None)
        await asyncio.gather(*self._closing)

    # ---- jobs

    def opened(self, job: JobDescription) -> None:
        """A job whose chunks may come."""
        self._names[job.wire] = job.name
        taken = set(self._streams.values())
        # The smallest free number, so that connections are used again by later jobs.
        self._streams[job.wire] = next(k for k in range(1, len(taken) + 2) if k not in taken)

    def forget(self, job: JobDescription) -> None:
        """It is over, or was killed."""
        self._names.pop(job.wire, None)
        self._streams.pop(job.wire, None)
        self._under_way.pop(job.wire, None)

    def ready(self, job: JobDescription, seq: int) -> None:
        """All workers here have called a collective."""
        if self._link is None:
            return
        self._under_way[job.wire] = _Coflow(seq)
        self._tell("ready", job.name, seq)

    def done(self, job: JobDescription, seq: int) -> None:
        """All results of a collective are here."""
        if self._link is None:
            return
        coflow = self._under_way.get(job.wire)
        if coflow is None or coflow.seq != seq:
            self._tell("done", job.name, seq)
            return
        del self._under_way[job.wire]
        self._tell("done", job.name, seq, wait_s=coflow.wait_ns / 1e9, chunks=coflow.chunks)

    def placement(self, wire: str) -> Placement | None:
        """Where a job's chunks belong now; None = no order is in force."""
        if self.map is None:
            return None
        name = self._names.get(wire)
        place = self.map.places.get(name) if name is not None else None
        if place is None:
            place = Place(0, NO_RANK)
        cls = place.level if self.map.enforcement != "gate" else 0
        stream = self._streams.get(wire, 0) if place.shared else 0
        return Placement(cls, stream, (-place.level, place.rank))

    # ---- inside

    def _said(self, kind: str, body: dict[str, Any]) -> None:
        if kind != "map":
            raise ProtocolError(f"unknown frame {kind!r}")
        try:
            fresh = LevelMap.from_dict(body)
        except CoflowError as error:
            raise ProtocolError(str(error)) from None
        if self.map is None or fresh.version >= self.map.version:
            self.map = fresh
            self._apply()

    def _apply(self) -> None:
        if self.map is None:
            self._lanes.arrange(lambda wire: Placement(), gated=False, notsent_bytes=NOTSENT_LOWAT)
            return
        gated = self.map.enforcement != "dscp"
        self._lanes.arrange(lambda wire: self.placement(wire) or Placement(), gated=gated, notsent_bytes=UNSENT_BYTES)

    def _left(self, item: Waiting) -> None:
        """A placed chunk begins to leave."""
        waited = time.monotonic_ns() - item.since_ns
        self.gate_wait_ns += waited
        self.gated_chunks += 1
        coflow = self._under_way.get(item.owner)
        if coflow is not None:
            coflow.nbytes += item.payload.nbytes
            coflow.wait_ns += waited
            coflow.chunks += 1

    def _report(self) -> None:
        """How far coflows are that take longer than a moment."""
        for wire, coflow in self._under_way.items():
            if coflow.nbytes != coflow.told:
                coflow.told = coflow.nbytes
                self._tell("sent", self._names[wire], coflow.seq, nbytes=coflow.nbytes)
        self._timer = self._loop.call_later(REPORT_SECONDS, self._report)

    def _tell(self, kind: str, job: str, seq: int, **body: Any) -> None:
        assert self._link is not None
        self._link.send(kind, {"job": job, "seq": seq, "at_ns": time.monotonic_ns(), **body})
