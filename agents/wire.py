"""Frames: what travels on every byte stream between agents, coordinator, runner and workers.

A frame is a fixed prefix, a msgpack map (the header) and raw bytes (the payload)::

    "SB"  version u8  zero u8  header length u32  payload length u32   header   payload

The module does no I/O. `encode` returns the head and leaves the payload where it is, so that a sender hands
both to one `sendmsg`. `Decoder` says where the next bytes belong, so that a receiver reads a payload straight
into its place. Nothing is ever unpickled; whatever does not parse raises `ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from topologies.errors import StormbedError

MAGIC: Final = b"SB"
VERSION: Final = 1
PREFIX: Final = struct.Struct("!2sBBII")
MAX_HEADER: Final = 64 * 1024
MAX_PAYLOAD: Final = 256 * 1024 * 1024
# Bytes asked for when a new frame is due. Small frames arrive whole in one read; of a large payload at most
# this much is copied once more.
READ_AHEAD: Final = 2048
# The header's last field in a stamped frame: `Stamp` as a number. msgpack gives it 8 bytes at the very end.
STAMP: Final = "left"
_NO_TIME_YET: Final = 1 << 63
_BEHIND: Final = (False, True, None)

Header = dict[str, Any]
Allocate = Callable[[Header, int], memoryview]


class ProtocolError(StormbedError):
    """The other end sent bytes that are not frames of this version, or a frame that nobody expects."""


@dataclass(slots=True)
class Frame:
    """One frame. `payload` is a flat view of bytes, empty when there is none."""

    header: Header
    payload: memoryview


def as_bytes(buffer: Any) -> memoryview:
    """A flat byte view of a contiguous buffer, without copying."""
    view = memoryview(buffer)
    if view.nbytes == 0:
        return memoryview(b"")  # a view with a zero in its shape cannot be cast
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def fresh_buffer(header: Header, nbytes: int) -> memoryview:
    """Default destination of a payload: memory of its own, not zeroed first."""
    return np.empty(nbytes, np.uint8).data if nbytes else memoryview(b"")


def encode(header: Mapping[str, Any], payload: Any = b"", *, stamp: bool = False) -> tuple[bytes, memoryview]:
    """The head of a frame and a byte view of its payload, to be sent one after the other.

    With `stamp` the header ends with a place for the time of departure, which `stamped` fills in. Raises
    `ProtocolError` when either is over its limit.
    """
    packed = msgpack.packb({**header, STAMP: _NO_TIME_YET} if stamp else header)
    view = as_bytes(payload)
    if len(packed) > MAX_HEADER:
        raise ProtocolError(f"a header of {len(packed)} bytes is over the limit of {MAX_HEADER}")
    if view.nbytes > MAX_PAYLOAD:
        raise ProtocolError(f"a payload of {view.nbytes} bytes is over the limit of {MAX_PAYLOAD}")
    return PREFIX.pack(MAGIC, VERSION, 0, len(packed), view.nbytes) + packed, view


class Stamp(NamedTuple):
    """How a frame began to leave.

    left_ns  when, on the monotonic clock
    follows  True: bytes before it were still unsent; False: all of them had arrived; None: neither is known
    """

    left_ns: int
    follows: bool | None


def stamped(head: bytes, stamp: Stamp) -> bytes:
    """The head of a frame encoded with `stamp`, with its stamp."""
    number = stamp.left_ns << 2 | _BEHIND.index(stamp.follows)
    return head[:-8] + number.to_bytes(8, "big")


def stamp_of(header: Header) -> Stamp | None:
    """The stamp of a frame that has one; raises `ProtocolError`."""
    number = header.get(STAMP)
    if number is None:
        return None
    if not isinstance(number, int) or number < 0 or number & 3 >= len(_BEHIND):
        raise ProtocolError(f"a frame left at {number!r}")
    return Stamp(number >> 2, _BEHIND[number & 3])


def encode_bytes(header: Mapping[str, Any], payload: Any = b"") -> bytes:
    """A whole frame in one piece, for small ones."""
    head, view = encode(header, payload)
    return head + bytes(view)


def pack_body(body: Any) -> bytes:
    """A structured payload (policies, job descriptions), which may be larger than a header."""
    packed: bytes = msgpack.packb(body)
    return packed


def unpack_body(payload: memoryview) -> Any:
    """Inverse of `pack_body`; raises `ProtocolError`."""
    return _unpack(payload, "payload")


def _unpack(data: Any, what: str) -> Any:
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a {what} is not valid msgpack: {error}") from None


class Decoder:
    """Incremental decoder that tells the reader where to put the next bytes.

    Args:
        allocate: called with the header and the payload's length once both are known; returns a writable byte
            view of exactly that length. It may raise `ProtocolError` to refuse the frame before its payload
            is read.

    Use: read some bytes into `buffer()`, account for them by `advance`, then call `next_frame` until it gives
    None. After an error the decoder is finished and says so.
    """

    def __init__(self, allocate: Allocate = fresh_buffer) -> None:
        self._allocate = allocate
        self._stage = bytearray(PREFIX.size + MAX_HEADER + READ_AHEAD)
        self._view = memoryview(self._stage)
        self._start = 0  # first byte of the stage not yet consumed
        self._end = 0  # end of what was read into the stage
        self._header: Header | None = None
        self._payload = memoryview(b"")
        self._filled = 0
        self._failed: ProtocolError | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether the stream would be cut inside a frame if it ended now."""
        return self._header is not None or self._end > self._start

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._failed is not None:
            raise self._failed
        if self._header is not None:
            return self._payload[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end + READ_AHEAD > len(self._stage):
            left = self._end - self._start
            self._stage[:left] = self._stage[self._start : self._end]
            self._start, self._end = 0, left
        return self._view[self._end : max(self._end + READ_AHEAD, self._start + self._wanted())]

    def advance(self, count: int) -> None:
        """Account for `count` bytes read into `buffer()`."""
        if self._header is not None:
            self._filled += count
        else:
            self._end += count

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None until more bytes are read.

        One at a time, so that what a frame changes is in force when the payload of the next one is placed.
        """
        if self._failed is not None:
            raise self._failed
        try:
            if self._header is None:
                if not self._parse_head():
                    return None
                take = min(self._end - self._start, len(self._payload))
                if take:
                    self._payload[:take] = self._view[self._start : self._start + take]
                    self._start += take
                self._filled = take
            return self._finish() if self._filled == len(self._payload) else None
        except ProtocolError as error:
            self._failed = error
            raise

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Decode bytes that were read elsewhere; they are copied."""
        frames: list[Frame] = []
        rest = as_bytes(data)
        while len(rest):
            room = self.buffer()
            take = min(len(room), len(rest))
            room[:take] = rest[:take]
            self.advance(take)
            while (frame := self.next_frame()) is not None:
                frames.append(frame)
            rest = rest[take:]
        return frames

    def _wanted(self) -> int:
        """Bytes of prefix and header that this frame needs, as far as known."""
        if self._end - self._start < PREFIX.size:
            return PREFIX.size
        return PREFIX.size + int(PREFIX.unpack_from(self._stage, self._start)[3])

    def _parse_head(self) -> bool:
        """Take prefix and header from the stage if they are complete."""
        if self._end - self._start < PREFIX.size:
            return False
        magic, version, zero, header_bytes, payload_bytes = PREFIX.unpack_from(self._stage, self._start)
        if magic != MAGIC or zero != 0:
            first = bytes(self._stage[self._start : self._start + 4])
            raise ProtocolError(f"not a frame: it begins with {first!r}")
        if version != VERSION:
            raise ProtocolError(f"frame of version {version}; this side speaks {VERSION}")
        if header_bytes > MAX_HEADER:
            raise ProtocolError(f"a header of {header_bytes} bytes is over the limit of {MAX_HEADER}")
        if payload_bytes > MAX_PAYLOAD:
            raise ProtocolError(f"a payload of {payload_bytes} bytes is over the limit of {MAX_PAYLOAD}")
        head_end = self._start + PREFIX.size + header_bytes
        if self._end < head_end:
            return False
        header = _unpack(self._view[self._start + PREFIX.size : head_end], "header")
        if not isinstance(header, dict) or not all(isinstance(key, str) for key in header):
            raise ProtocolError("a header is not a map with text keys")
        payload = self._allocate(header, payload_bytes)
        if len(payload) != payload_bytes:
            raise ProtocolError(f"a payload of {payload_bytes} bytes was given room for {len(payload)}")
        self._start = head_end
        self._header, self._payload, self._filled = header, payload, 0
        return True

    def _finish(self) -> Frame:
        assert self._header is not None
        frame = Frame(self._header, self._payload)
        self._header, self._payload, self._filled = None, memoryview(b""), 0
        return frame
