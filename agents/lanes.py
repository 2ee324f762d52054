"""The sending half of the transport: one connection per lane and the queue in front of it.

A lane is (peer, path, class, stream). Its connection is opened by the sender, bound to the site's WAN address and
marked with the path's TOS before the handshake, and never marked anew. The kernel is given little more than
it can send at once (`TCP_NOTSENT_LOWAT`), so that the backlog stays here, where it is ordered and counted.
The send buffer itself is left to the kernel: it must hold what is in flight, which a fixed size would cap.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from agents import wire
from agents.lane_socket import fix_send_buffer, limit_unsent, mark, unacknowledged, unsent
from agents.placement import Order, Placement, Waiting
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

class LaneId(NamedTuple):
    """Which connection: the peer's site index, the path's number at this source, the class.

    Stream 0 is everybody's; a job that shares a link by a connection of its own has a number of its own.
    """

    peer: int
    path: int
    cls: int
    stream: int = 0


@dataclass(slots=True)
class LaneCounters:
    """What went over a lane since the agent started; survives reconnects."""

    bytes: int = 0
    frames: int = 0
    connects: int = 0
    losses: int = 0


class LaneGate(Protocol):
    """What lets lanes that leave by one link send (`agents.uplink`)."""

    def wants(self, lane: Lane, key: Order) -> None: ...
    def admits(self, lane: Lane) -> bool: ...
    def moved(self, lane: Lane) -> None: ...
    def idle(self, lane: Lane) -> None: ...


class Lane:
    """One TCP connection to a peer and its priority queue.

    Args:
        lane: which one.
        address: host and port of the peer's listener.
        source: local address to send from.
        hello: the frame that opens the stream.
        counters: updated as bytes leave.
        on_lost: called once per lost connection with the reason; frames then waiting are gone.
        on_left: called with the frames that begin to leave and were placed by a policy.
        notsent_bytes: how much the kernel is given beyond what it can send at once.
        send_buffer_bytes: instead of that limit, a kernel's buffer of this size (0: the kernel's own).

    Attributes:
        gate: asked before frames leave; None lets all of them.
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
        on_left: Callable[[Waiting], None] = lambda item: None,
        notsent_bytes: int = NOTSENT_LOWAT,
        send_buffer_bytes: int = 0,
    ) -> None:
        self.id = lane
        self.counters = counters
        self.gate: LaneGate | None = None
        self._address = address
        self._source = source
        self._hello = hello
        self._on_lost = on_lost
        self._on_left = on_left
        self._notsent_bytes = notsent_bytes
        self._send_buffer_bytes = send_buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._heap: list[Waiting] = []
        self._arrivals = 0
        self._socket: socket.socket | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._buffers: list[bytes | memoryview] = []
        self._callbacks: list[Callable[[], None]] = []
        self._armed = False  # waiting for the socket to become writable
        self._scheduled = False  # a turn is due in this round of the loop
        self._leaving_key: Order = ()  # of what the kernel has only a part of

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
        placed: Placement | None = None,
    ) -> None:
        """Queue a frame: the smallest key of `placed` first, then the smallest `order`, then as they came.

        `sent` is called when the kernel has all of it, so that the payload's memory may be used anew. With
        `stamp` the head, encoded with a place for it, is told the time when the frame begins to leave.
        """
        key = placed.key if placed is not None else ()
        now = time.monotonic_ns() if placed is not None else 0
        self._push(Waiting(key, order, 0, head, payload, owner, sent, stamp, placed is not None, now))

    def _push(self, item: Waiting) -> None:
        item.arrival = self._arrivals
        self._arrivals += 1
        heapq.heappush(self._heap, item)
        self._tell_gate()
        if self._socket is None:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
        else:
            self.resume()

    def resume(self) -> None:
        """Take a turn soon, unless the kernel has enough already."""
        if self._socket is not None and not self._armed and not self._scheduled:
            # Not at once: what else this round of the loop offers may come first, or share the system call.
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def drop(self, owner: str) -> None:
        """Forget the owner's frames that have not begun to leave; their `sent` is never called."""
        kept = [item for item in self._heap if item.owner != owner]
        if len(kept) != len(self._heap):
            self._keep(kept)

    def rearrange(self, place: Callable[[str], Placement]) -> list[tuple[Placement, Waiting]]:
        """Order waiting frames by new places of their owners.

        Those that belong to other lanes now are taken out and returned, for these to `accept`.
        """
        kept: list[Waiting] = []
        leaving: list[tuple[Placement, Waiting]] = []
        for item in sorted(self._heap):
            placement = place(item.owner) if item.placed else None
            if placement is not None and (placement.cls, placement.stream) != self.id[2:]:
                leaving.append((placement, item))
                continue
            if placement is not None:
                item.key = placement.key
            kept.append(item)
        if self._heap:
            self._keep(kept)
        return leaving

    def accept(self, placement: Placement, item: Waiting) -> None:
        """A frame that waited in another lane before; it has waited since it was offered there."""
        item.key = placement.key
        self._push(item)

    def limit_unsent(self, nbytes: int) -> None:
        """How much the kernel is given beyond what it can send at once."""
        self._notsent_bytes = nbytes
        if self._socket is not None:
            limit_unsent(self._socket, nbytes)

    @property
    def queued_bytes(self) -> int:
        """What the kernel has of it that the peer has not acknowledged."""
        return 0 if self._socket is None else unacknowledged(self._socket)

    def _keep(self, items: list[Waiting]) -> None:
        heapq.heapify(items)
        self._heap = items
        self._tell_gate()

    def _tell_gate(self) -> None:
        if self.gate is None:
            return
        keys = [self._leaving_key] if self._buffers else []
        if self._heap:
            keys.append(self._heap[0].key)
        if keys:
            self.gate.wants(self, min(keys))
        else:
            self.gate.idle(self)

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
                mark(sock, dscp.encode(self.id.path, self.id.cls))
                if self._send_buffer_bytes:
                    fix_send_buffer(sock, self._send_buffer_bytes)
                else:
                    limit_unsent(sock, self._notsent_bytes)
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
            if not self._buffers:
                held = self.gate is not None and bool(self._heap) and not self.gate.admits(self)
                if held or not self._gather():
                    self._arm(False)
                    self._tell_gate()
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
            if self.gate is not None:
                self.gate.moved(self)
            if not self._consume(count):
                break
        self._arm(True)
        self._tell_gate()

    def _gather(self) -> bool:
        """Take the next frames from the queue."""
        total = frames = 0
        heap, buffers = self._heap, self._buffers
        self._leaving_key = heap[0].key if heap else ()
        while heap and total < GATHER_BYTES and frames < GATHER_FRAMES:
            item = heapq.heappop(heap)
            buffers.append(wire.stamped(item.head, self._stamp()) if item.stamp else item.head)
            if item.payload.nbytes:
                buffers.append(item.payload)
            if item.sent is not None:
                self._callbacks.append(item.sent)
            if item.placed:
                self._on_left(item)
            total += len(item.head) + item.payload.nbytes
            frames += 1
        self.counters.frames += frames
        return frames > 0

    def _stamp(self) -> wire.Stamp:
        """Now, and whether what left before is still in the kernel or under way."""
        assert self._socket is not None
        follows: bool | None = True
        if not self._buffers and not unsent(self._socket):
            follows = None if unacknowledged(self._socket) else False
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
        self._tell_gate()

    def _lost(self, reason: str) -> None:
        self._reset()
        self.counters.losses += 1
        self._on_lost(self.id, reason)


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error)
