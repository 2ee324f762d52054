"""Control connections: small frames in both directions, with signs of life.

Used between agent and coordinator and between coordinator and runner. A header says what a frame is, its
payload is a msgpack body. Both ends send `ping` when they have nothing else to say, so an end that hangs is
noticed as well as one that dies.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from agents import wire
from agents.control_classes import ALIVE, control_class
from agents.wire import ProtocolError
from topologies import dscp

PING: Final = "ping"
CONTROL_CLASS: Final = 7
PING_SECONDS: Final = 2.0
# Generous, because a machine that trains on all its cores may not run an agent for a while.
SILENCE_SECONDS: Final = 30.0
# A peer that does not read must not make this side hoard frames.
MAX_UNSENT: Final = 64 * 1024 * 1024


class FrameStream(asyncio.Protocol):
    """One end of a control connection.

    Args:
        on_frame: called with (stream, kind, body) for every frame but pings. A ProtocolError ends the
            connection.
        on_end: called once with (stream, reason) when the connection has ended and `close` was not called
            here.

    Attributes:
        sent, received: bytes by class (`agents.control_classes`).
    """

    def __init__(
        self,
        on_frame: Callable[[FrameStream, str, dict[str, Any]], None],
        on_end: Callable[[FrameStream, str], None],
    ) -> None:
        self.on_frame = on_frame
        self.silence_s: float | None = SILENCE_SECONDS
        self._on_end = on_end
        self._decoder = wire.Decoder()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self.peer_address = "?"
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Where it crosses the WAN, control must not wait behind the chunks that it is about.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp.encode(0, CONTROL_CLASS))
        address = transport.get_extra_info("peername")
        self.peer_address = f"{address[0]}:{address[1]}" if address else "?"
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(PING_SECONDS, self._tick)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            for frame in self._decoder.feed(data):
                kind = frame.header.get("kind")
                if not isinstance(kind, str):
                    raise ProtocolError(f"a control frame without a kind: {frame.header}")
                if self._ended:
                    continue
                if kind == PING:
                    self.received[ALIVE] += len(_PING_FRAME)
                    continue
                body = wire.unpack_body(frame.payload)
                if not isinstance(body, dict):
                    raise ProtocolError(f"the body of a {kind} frame is not a map")
                self.received[control_class(kind, body)] += _head_bytes(kind) + len(frame.payload)
                self.on_frame(self, kind, body)
        except ProtocolError as error:
            self.end(f"it broke the protocol: {error}")

    def eof_received(self) -> bool:
        self.end("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(f"the connection failed: {exc}" if exc else "it closed the connection")

    def send(self, kind: str, body: dict[str, Any]) -> int:
        """Queue a frame; its bytes. Nothing happens when the connection has ended (0)."""
        if self._ended or self._transport is None:
            return 0
        frame = wire.encode_bytes({"kind": kind}, wire.pack_body(body))
        self._transport.write(frame)
        self.sent[control_class(kind, body)] += len(frame)
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self.end("it reads nothing")
        return len(frame)

    def end(self, reason: str) -> None:
        """Close because of the other end, and report that."""
        if not self._ended:
            self._finish()
            self._on_end(self, reason)

    def close(self) -> None:
        """Close without a report; what was queued is still sent."""
        if not self._ended:
            self._finish()

    def _finish(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    def _tick(self) -> None:
        silence = self._loop.time() - self._heard
        if self.silence_s is not None and silence > self.silence_s:
            self.end(f"it was silent for {silence:.0f} s")
            return
        assert self._transport is not None
        self._transport.write(_PING_FRAME)
        self.sent[ALIVE] += len(_PING_FRAME)
        self._timer = self._loop.call_later(PING_SECONDS, self._tick)


@functools.cache
def _head_bytes(kind: str) -> int:
    return len(wire.encode_bytes({"kind": kind}, b""))


_PING_FRAME: Final = wire.encode_bytes({"kind": PING}, b"")
