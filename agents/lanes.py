"""The sending half of the transport: one connection per lane and the queue in front of it.

A lane is (peer, path, class). Its connection is opened by the sender, bound to the site's WAN address and
marked with the path's TOS before the handshake, and never marked anew. The kernel is given little more than
it can send at once (`TCP_NOTSENT_LOWAT`), so that the backlog stays here, where it is ordered and counted.
The send buffer itself is left to the kernel: it must hold what is in flight, which a fixed size would cap.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import heapq
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agents import wire
from topologies import dscp

NOTSENT_LOWAT: Final = 256 * 1024
# Frames are gathered into one system call until they reach this size; more would only be committed too early.
GATHER_BYTES: Final = 64 * 1024
GATHER_FRAMES: Final = 16
# What one lane may hand to the kernel before the other lanes and the receivers get their turn.
TURN_BYTES: Final = 1024 * 1024
CONNECT_SECONDS: Final = 20.0
ATTEMPT_SECONDS: Final = 5.0
FIRST_RETRY_SECONDS: Final = 0.05
LAST_RETRY_SECONDS: Final = 1.0
# In <linux/in.h> and <netinet/tcp.h>, not in the socket module of Python 3.11.
IP_BIND_ADDRESS_NO_PORT: Final = 24
TCP_NOTSENT_LOWAT: Final = 25
# In <linux/sockios.h>.
SIOCOUTQ: Final = 0x5411
SIOCOUTQNSD: Final = 0x894B
TCP_RTO_MAX_MS: Final = 44
# A link that comes back after a minute is tried again within this time, not after another minute.
LONGEST_RETRANSMISSION_MS: Final = 2000

Order = tuple[float, ...]


class LaneId(NamedTuple):
    """Which connection: the peer's site index, the path's number at this source, the class."""

    peer: int
    path: int
    cls: int


@dataclass(slots=True)
class LaneCounters:
    """What went over a lane since the agent started; survives reconnects."""

    bytes: int = 0
    frames: int = 0
    connects: int = 0
    losses: int = 0


@dataclass(order=True, slots=True)
class _Waiting:
    order: Order
    arrival: int
    head: bytes = field(compare=False)
    payload: memoryview = field(compare=False)
    owner: str = field(compare=False)
    sent: Callable[[], None] | None = field(compare=False)
    stamp: bool = field(compare=False)


class Lane:
    """One TCP connection to a peer and its priority queue.

    Args:
        lane: which one.
        address: host and port of the peer's listener.
        source: local address to send from.
        hello: the frame that opens the stream.
        counters: updated as bytes leave.
        on_lost: called once per lost connection with the reason; frames then waiting are gone.
    """

    def __init__(
        self,
        lane: LaneId,
        *,
        address: tuple[str, int],
        source: str,
        hello: bytes,
        counters: LaneCounters,
        on_lost: Callable[[LaneId, str], None],
    ) -> None:
        self.id = lane
        self.counters = counters
        self._address = address
        self._source = source
        self._hello = hello
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._heap: list[_Waiting] = []
        self._arrivals = 0
        self._socket: socket.socket | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._buffers: list[bytes | memoryview] = []
        self._callbacks: list[Callable[[], None]] = []
        self._armed = False  # waiting for the socket to become writable
        self._scheduled = False  # a turn is due in this round of the loop

    @property
    def waiting(self) -> int:
        """Frames that have not begun to leave."""
        return len(self._heap)

    def offer(
        self,
        head: bytes,
        payload: memoryview,
        *,
        order: Order = (),
        owner: str = "",
        sent: Callable[[], None] | None = None,
        stamp: bool = False,
    ) -> None:
        """Queue a frame. The smallest `order` goes first, equal ones in order of arrival.

        `sent` is called when the kernel has all of it, so that the payload's memory may be used anew. With
        `stamp` the head, encoded with a place for it, is told the time when the frame begins to leave.
        """
        heapq.heappush(self._heap, _Waiting(order, self._arrivals, head, payload, owner, sent, stamp))
        self._arrivals += 1
        if self._socket is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
        elif not self._armed and not self._scheduled:
            # Not at once: what else this round of the loop offers may come first, or share the system call.
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def drop(self, owner: str) -> None:
        """Forget the owner's frames that have not begun to leave; their `sent` is never called."""
        kept = [item for item in self._heap if item.owner != owner]
        if len(kept) != len(self._heap):
            heapq.heapify(kept)
            self._heap = kept

    async def close(self) -> None:
        """Close without a report of loss; what is waiting is forgotten."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
            self._connecting = None
        self._reset()

    async def _connect(self) -> None:
        """Try until the deadline: the peer may still be starting, or the path be down for a moment."""
        deadline = self._loop.time() + CONNECT_SECONDS
        pause = FIRST_RETRY_SECONDS
        while True:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp.encode(self.id.path, self.id.cls))
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOTSENT_LOWAT)
                with contextlib.suppress(OSError):  # Linux 6.15 and later
                    sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, LONGEST_RETRANSMISSION_MS)
                sock.bind((self._source, 0))
                async with asyncio.timeout(ATTEMPT_SECONDS):
                    await self._loop.sock_connect(sock, self._address)
                break
            except asyncio.CancelledError:
                sock.close()
                raise
            except (OSError, TimeoutError) as error:
                sock.close()
                if self._loop.time() + pause > deadline:
                    self._connecting = None
                    reason = f"no connection to {self._address[0]}:{self._address[1]} within "
                    reason += f"{CONNECT_SECONDS:g} s: {_reason(error)}"
                    self._lost(reason)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_RETRY_SECONDS)
        self._socket, self._connecting = sock, None
        self._buffers = [self._hello]
        self.counters.connects += 1
        self._loop.add_reader(sock, self._peer_spoke)
        self._turn()

    def _turn(self) -> None:
        """Hand frames to the kernel until it has enough, the queue is empty or the turn is over."""
        self._scheduled = False
        sock = self._socket
        if sock is None:
            return
        left = TURN_BYTES
        while left > 0:
            if not self._buffers and not self._gather():
                self._arm(False)
                return
            try:
                count = sock.sendmsg(self._buffers)
            except BlockingIOError:
                break
            except OSError as error:
                self._lost(_reason(error))
                return
            left -= count
            self.counters.bytes += count
            if not self._consume(count):
                break
        self._arm(True)

    def _gather(self) -> bool:
        """Take the next frames from the queue."""
        total = frames = 0
        heap, buffers = self._heap, self._buffers
        while heap and total < GATHER_BYTES and frames < GATHER_FRAMES:
            item = heapq.heappop(heap)
            buffers.append(wire.stamped(item.head, self._stamp()) if item.stamp else item.head)
            if item.payload.nbytes:
                buffers.append(item.payload)
            if item.sent is not None:
                self._callbacks.append(item.sent)
            total += len(item.head) + item.payload.nbytes
            frames += 1
        self.counters.frames += frames
        return frames > 0

    def _stamp(self) -> wire.Stamp:
        """Now, and whether what left before is still in the kernel or under way."""
        assert self._socket is not None
        follows: bool | None = True
        if not self._buffers and not _queued(self._socket, SIOCOUTQNSD):
            follows = None if _queued(self._socket, SIOCOUTQ) else False
        return wire.Stamp(time.monotonic_ns(), follows)

    def _consume(self, count: int) -> bool:
        """Drop `count` sent bytes from the front; whether all are gone."""
        buffers = self._buffers
        for place, buffer in enumerate(buffers):
            if count < len(buffer):
                del buffers[:place]
                buffers[0] = memoryview(buffer)[count:]
                return False
            count -= len(buffer)
        buffers.clear()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def _arm(self, wanted: bool) -> None:
        if wanted != self._armed and self._socket is not None:
            self._armed = wanted
            if wanted:
                self._loop.add_writer(self._socket, self._turn)
            else:
                self._loop.remove_writer(self._socket)

    def _peer_spoke(self) -> None:
        """The peer never sends on this connection: it closed, reset, or is not an agent."""
        assert self._socket is not None
        try:
            data = self._socket.recv(64)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(_reason(error))
            return
        self._lost("the peer sent bytes on a one-way stream" if data else "the peer closed the connection")

    def _reset(self) -> None:
        if self._socket is not None:
            self._arm(False)
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._heap.clear()
        self._buffers.clear()
        self._callbacks.clear()

    def _lost(self, reason: str) -> None:
        self._reset()
        self.counters.losses += 1
        self._on_lost(self.id, reason)


def _queued(sock: socket.socket, request: int) -> int:
    """Bytes in a socket's send buffer: not acknowledged, or not even sent."""
    return int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error)
