"""Point-to-point messages of the workers of one site: what `send` and `recv` frames do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from agents.calls import Ranks
from agents.local_server import WorkerLink
from agents.mailbox import Line, Mailbox
from agents.wire import Frame, Header, ProtocolError


class Order(NamedTuple):
    """A worker's `send` or `recv`: its line, the worker's number for it, and its memory."""

    line: Line
    number: int
    place: memoryview


class SiteMessages:
    """The messages of one job at one site.

    Args:
        ranks, site: which ranks are here.
        deadline_s: how long a receive may wait.
        send: sends a frame to a site of the job; the last argument is called when the payload may change.
        fault: told why the job must stop.
    """

    def __init__(
        self,
        ranks: Ranks,
        site: int,
        deadline_s: float,
        *,
        send: Callable[[int, Header, memoryview, Callable[[], None]], None],
        fault: Callable[[str], None],
    ) -> None:
        self._ranks = ranks
        self._site = site
        self._deadline_s = deadline_s
        self._send = send
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox()
        self._timers: set[asyncio.TimerHandle] = set()

    @property
    def waiting(self) -> int:
        """Receives that wait."""
        return len(self._timers)

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages that nobody has received yet."""
        return self._mailbox.kept_bytes

    def send(self, rank: int, link: WorkerLink, header: Mapping[str, Any]) -> None:
        """A worker sends."""
        order = self._order(rank, link, header, "dst")
        line, number, payload = order

        def sent() -> None:
            link.send({"kind": "sent", "id": number})

        site = self._ranks.site[line.dst]
        if site != self._site:
            self._send(site, {"kind": "message", **line._asdict()}, payload, sent)
            return
        place = self._mailbox.place(line, len(payload))
        if len(payload):
            place[:] = payload
        self._mailbox.arrived(line, place)
        sent()

    def receive(self, rank: int, link: WorkerLink, header: Mapping[str, Any], who: str) -> None:
        """A worker waits for a message; `who` names it."""
        line, number, place = self._order(rank, link, header, "src")
        timer = self._loop.call_later(
            self._deadline_s, self._fault, f"{who} waited {self._deadline_s:g} s for a message {line}"
        )
        self._timers.add(timer)

        def received() -> None:
            timer.cancel()
            self._timers.discard(timer)
            link.send({"kind": "received", "id": number})

        self._mailbox.post(line, place, received)

    def place(self, header: Header, nbytes: int) -> memoryview:
        """Where to read a message from another site to."""
        return self._mailbox.place(self._line(header), nbytes)

    def arrived(self, frame: Frame) -> None:
        """A message from another site. RunFailedError when it does not fit its receiver."""
        self._mailbox.arrived(self._line(frame.header), frame.payload)

    def forget(self) -> None:
        """The job is over."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._mailbox = Mailbox()

    def _order(self, rank: int, link: WorkerLink, header: Mapping[str, Any], peer_key: str) -> Order:
        try:
            number, nbytes, tag = int(header["id"]), int(header["nbytes"]), int(header["tag"])
            peer = int(header[peer_key])
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(f"not a message: {dict(header)}") from None
        if not 0 <= peer < self._ranks.world or peer == rank or nbytes < 0:
            raise ProtocolError(f"rank {rank} has no other rank {peer}")
        line = Line(rank, peer, tag) if peer_key == "dst" else Line(peer, rank, tag)
        place = memoryview(b"")
        if nbytes:
            place = link.arena.view(header.get("data"), np.uint8, nbytes).data
        return Order(line, number, place)

    def _line(self, header: Header) -> Line:
        try:
            line = Line(int(header["src"]), int(header["dst"]), int(header["tag"]))
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(f"not a message: {header}") from None
        world = range(self._ranks.world)
        if line.src not in world or line.dst not in world or self._ranks.site[line.dst] != self._site:
            raise ProtocolError(f"a message {line} reached a site without that rank")
        return line
