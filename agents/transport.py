"""Frames between agents over the WAN: a listener, and one-way connections that each sender opens.

Receiving uses asyncio's `BufferedProtocol`: payload bytes are read straight into the memory that the agent
names when it has seen a frame's header.

Back-pressure: the agent may ask the transport to stop reading (`hold`) while it keeps many bytes that it
cannot use yet. What ends that must not have to arrive by these connections; see `Agent` for why it need not.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from agents import wire
from agents.lane_socket import fixed_send_buffer
from agents.lanes import NOTSENT_LOWAT, Lane, LaneCounters, LaneId
from agents.placement import Order, Placement, Waiting
from agents.uplink import Uplink
from agents.wire import Frame, Header, ProtocolError

log = logging.getLogger(__name__)

HELLO: Final = "hello"
HELLO_SECONDS: Final = 10.0
BACKLOG: Final = 1024


class Receiver(Protocol):
    """What the transport needs from the agent."""

    def place(self, peer: int, header: Header, nbytes: int) -> memoryview:
        """Where the payload of this frame goes. Raises `ProtocolError` to refuse the frame."""

    def arrived(self, peer: int, path: int, frame: Frame) -> None:
        """A whole frame. Raises `ProtocolError` to end the connection."""

    def lost(self, peer: int, path: int, reason: str) -> None:
        """A connection from or to the peer ended although neither side is closing."""


class _Inlet(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, owner: Transport) -> None:
        self._owner = owner
        self._decoder = wire.Decoder(self._place)
        self._transport: asyncio.Transport | None = None
        self._peer: int | None = None
        self._path = 0
        self._counters = LaneCounters()
        self._hello_timer: asyncio.TimerHandle | None = None
        self._address: Any = None
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._address = transport.get_extra_info("peername")
        self._owner.inlets.add(self)
        self._hello_timer = asyncio.get_running_loop().call_later(
            HELLO_SECONDS, self._end, f"no greeting within {HELLO_SECONDS:g} s"
        )
        if self._owner.holding:
            transport.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._counters.bytes += nbytes
        try:
            self._decoder.advance(nbytes)
            while (frame := self._decoder.next_frame()) is not None:
                if self._peer is None:
                    self._greeted(frame.header)
                else:
                    self._counters.frames += 1
                    self._owner.receiver.arrived(self._peer, self._path, frame)
        except ProtocolError as error:
            self._end(str(error))

    def eof_received(self) -> bool:
        self._end("cut inside a frame" if self._decoder.mid_frame else "the peer closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._end(str(exc).lower())
        self._owner.inlets.discard(self)
        if self._hello_timer is not None:
            self._hello_timer.cancel()

    def hold(self, wanted: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    def _place(self, header: Header, nbytes: int) -> memoryview:
        if self._peer is None:
            if nbytes:
                raise ProtocolError("a payload before the greeting")
            return memoryview(b"")
        return self._owner.receiver.place(self._peer, header, nbytes)

    def _greeted(self, header: Header) -> None:
        peer, path = header.get("site"), header.get("path")
        if header.get("kind") != HELLO or not isinstance(peer, int) or not isinstance(path, int):
            raise ProtocolError(f"the first frame is not a greeting: {header}")
        if peer not in self._owner.addresses or peer == self._owner.site:
            raise ProtocolError(f"a greeting from site {peer}, which is none of the other sites")
        self._peer, self._path = peer, path
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        before = self._counters
        self._counters = self._owner.received[(peer, path)]
        self._counters.connects += 1
        self._counters.bytes += before.bytes

    def _end(self, reason: str) -> None:
        """Close and tell the agent, once."""
        if self._ended:
            return
        self.close()
        self._counters.losses += 1
        if self._peer is None:
            self._owner.refused += 1
            log.warning("refused a connection from %s: %s", self._address, reason)
        else:
            self._owner.receiver.lost(self._peer, self._path, reason)


class Transport:
    """All data connections of one agent.

    Args:
        site: index of this agent's site.
        addresses: listener of every site, by index; the own entry is where this agent listens and sends from.
        receiver: gets frames, and says where their payloads go.
        first_hops: neighbour where the path (destination, number) leaves this site; only to count queues.

    Raises UsageError where the environment asks for an impossible send buffer (`agents.lane_socket`).
    """

    def __init__(
        self,
        site: int,
        addresses: Mapping[int, tuple[str, int]],
        receiver: Receiver,
        *,
        first_hops: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        self.site = site
        self.addresses = addresses
        self.receiver = receiver
        self.received: defaultdict[tuple[int, int], LaneCounters] = defaultdict(LaneCounters)
        self.refused = 0
        self.inlets: set[_Inlet] = set()
        self.holding = False
        self._first_hops = first_hops or {}
        self._lanes: dict[LaneId, Lane] = {}
        self._server: asyncio.Server | None = None
        self._uplinks: dict[int, Uplink] | None = None  # by first hop, while gates are in use
        self._notsent_bytes = NOTSENT_LOWAT
        self._send_buffer_bytes = fixed_send_buffer()
        self.on_left: Callable[[Waiting], None] = lambda item: None

    async def start(self) -> None:
        """Listen. Raises OSError when the address is not this machine's or is taken."""
        host, port = self.addresses[self.site]
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Inlet(self), host, port, family=socket.AF_INET, backlog=BACKLOG, reuse_address=True
        )

    async def close(self) -> None:
        """End all connections silently."""
        if self._server is not None:
            self._server.close()
        for inlet in tuple(self.inlets):
            inlet.close()
        for lane in self._lanes.values():
            await lane.close()
        if self._server is not None:
            await self._server.wait_closed()

    def send(
        self,
        peer: int,
        path: int,
        header: Mapping[str, Any],
        payload: Any = b"",
        *,
        cls: int = 0,
        order: Order = (),
        owner: str = "",
        sent: Callable[[], None] | None = None,
        stamp: bool = False,
        placed: Placement | None = None,
    ) -> None:
        """Queue a frame for a peer. The payload is not copied: it must not change until `sent` is called.

        Args:
            order: the smallest goes first on its lane, equal ones in order of arrival.
            owner: the job, so that `drop` finds what it left behind.
            stamp: the header ends with the time at which the frame begins to leave.
            placed: where a policy puts it among other jobs' frames; it goes by that class then.
        """
        head, view = wire.encode(header, payload, stamp=stamp)
        key = LaneId(peer, path, cls) if placed is None else LaneId(peer, path, placed.cls, placed.stream)
        self._lane(key).offer(head, view, order=order, owner=owner, sent=sent, stamp=stamp, placed=placed)

    def arrange(self, place: Callable[[str], Placement], *, gated: bool, notsent_bytes: int) -> None:
        """A policy's new places of owners: frames that wait are ordered, or change lanes, by them.

        Args:
            place: the place of an owner's frames.
            gated: hold back lanes while better placed ones can use their link.
            notsent_bytes: how much the kernel is given beyond what it can send at once.
        """
        if gated != (self._uplinks is not None):
            self._uplinks = {} if gated else None
            for lane in self._lanes.values():
                self._set_gate(lane)
        if notsent_bytes != self._notsent_bytes:
            self._notsent_bytes = notsent_bytes
            for lane in self._lanes.values():
                lane.limit_unsent(notsent_bytes)
        for lane in tuple(self._lanes.values()):
            for placement, item in lane.rearrange(place):
                other = LaneId(lane.id.peer, lane.id.path, placement.cls, placement.stream)
                self._lane(other).accept(placement, item)

    def _set_gate(self, lane: Lane) -> None:
        if lane.gate is not None:
            lane.gate.idle(lane)
        lane.gate = None
        if self._uplinks is not None:
            hop = self._hop(lane.id)
            if hop not in self._uplinks:
                self._uplinks[hop] = Uplink()
            lane.gate = self._uplinks[hop]
        lane.resume()

    def lead(self, first_hops: Mapping[tuple[int, int], int]) -> None:
        """Where paths leave this site from now on."""
        self._first_hops = first_hops

    def drop(self, owner: str) -> None:
        """Forget the owner's waiting frames."""
        for lane in self._lanes.values():
            lane.drop(owner)

    def hold(self, wanted: bool) -> None:
        """Stop or resume reading from all peers."""
        if wanted != self.holding:
            self.holding = wanted
            for inlet in tuple(self.inlets):
                inlet.hold(wanted)

    def lanes(self) -> Iterable[Lane]:
        """All lanes used so far."""
        return tuple(self._lanes.values())

    def queue_length(self, first_hop: int) -> int:
        """Frames waiting on all lanes whose path begins at that neighbour."""
        return sum(lane.waiting for lane in self._lanes.values() if self._hop(lane.id) == first_hop)

    def sent_bytes(self, peer: int, path: int) -> int:
        """What went to a peer over a path, in all classes."""
        return sum(lane.counters.bytes for lane in self._lanes.values() if lane.id[:2] == (peer, path))

    def queue_lengths(self) -> dict[int, int]:
        """`queue_length` of every first hop in use."""
        lengths: defaultdict[int, int] = defaultdict(int)
        for lane in tuple(self._lanes.values()):
            lengths[self._hop(lane.id)] += lane.waiting
        return dict(lengths)

    def _hop(self, lane: LaneId) -> int:
        # The network sends an absent path along the primary, so its queue counts there.
        primary = self._first_hops.get((lane.peer, 0), lane.peer)
        return self._first_hops.get((lane.peer, lane.path), primary)

    def _lane(self, key: LaneId) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            hello = {"kind": HELLO, "site": self.site, "path": key.path, "class": key.cls}
            lane = self._lanes[key] = Lane(
                key,
                address=self.addresses[key.peer],
                source=self.addresses[self.site][0],
                hello=wire.encode_bytes(hello),
                counters=LaneCounters(),
                on_lost=lambda lane_id, reason: self.receiver.lost(lane_id.peer, lane_id.path, reason),
                on_left=lambda item: self.on_left(item),
                notsent_bytes=self._notsent_bytes,
                send_buffer_bytes=self._send_buffer_bytes,
            )
            self._set_gate(lane)
        return lane
