"""Memory that a worker and its agent both see: a list of memfd segments, owned by the worker.

The worker allocates regions, writes its contributions there and tells the agent their places in small frames.
The agent sums in these regions and writes results into them. A segment's descriptor crosses the pathname UNIX
socket (SCM_RIGHTS), which works across network namespaces, and nothing of it outlives the two processes.
"""

from __future__ import annotations

import array
import bisect
import fcntl
import mmap
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from agents.wire import ProtocolError

ALIGNMENT: Final = 64
FIRST_SEGMENT: Final = 16 * 1024 * 1024
MAX_SEGMENT: Final = 64 * 1024**3
MAX_SEGMENTS: Final = 64
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

Bytes = npt.NDArray[np.uint8]


class Region(NamedTuple):
    """A place in a worker's memory: segment number, offset and length in bytes."""

    segment: int
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Segment:
    memory: Bytes
    address: int
    # Free ranges as sorted, disjoint, non-adjacent (start, end).
    free: list[tuple[int, int]]


class Arena:
    """The worker's side: allocates regions, first fit, and adds a segment when none has room.

    Args:
        announce: called with (segment number, size, descriptor) before a region of a new segment is given
            out.
    """

    def __init__(self, announce: Any) -> None:
        self._announce = announce
        self._segments: list[_Segment] = []
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Region:
        """A region of at least `nbytes` (of at least one byte), aligned for any element type."""
        size = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        with self._lock:
            for number, segment in enumerate(self._segments):
                for place, (start, end) in enumerate(segment.free):
                    if end - start >= size:
                        rest = [(start + size, end)] if end - start > size else []
                        segment.free[place : place + 1] = rest
                        return Region(number, start, size)
            segment = self._grow(size)
            if len(segment.memory) > size:
                segment.free.append((size, len(segment.memory)))
            return Region(len(self._segments) - 1, 0, size)

    def free(self, region: Region) -> None:
        """Give a region back."""
        start, end = region.offset, region.offset + region.nbytes
        with self._lock:
            free = self._segments[region.segment].free
            place = bisect.bisect_left(free, (start, end))
            if place < len(free) and free[place][0] == end:
                end = free.pop(place)[1]
            if place > 0 and free[place - 1][1] == start:
                place -= 1
                start = free.pop(place)[0]
            free.insert(place, (start, end))

    def view(self, region: Region, dtype: Any, count: int) -> npt.NDArray[Any]:
        """An array over the beginning of a region."""
        return _typed(self._segments[region.segment].memory, region.offset, dtype, count)

    def buffer(self, region: Region) -> memoryview:
        """The bytes of a region."""
        memory = self._segments[region.segment].memory
        return memory.data[region.offset : region.offset + region.nbytes]

    def find(self, values: npt.NDArray[Any]) -> Region | None:
        """The region in which a contiguous array lies entirely, or None."""
        address = values.__array_interface__["data"][0]
        for number, segment in enumerate(self._segments):
            offset = address - segment.address
            if offset >= 0 and offset + values.nbytes <= len(segment.memory) and values.nbytes:
                return Region(number, offset, values.nbytes)
        return None

    def _grow(self, size: int) -> _Segment:
        last = len(self._segments[-1].memory) if self._segments else FIRST_SEGMENT // 2
        total = max(2 * last, size)
        total = -(-total // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.memfd_create("stormbed-worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, total)
            # So that the agent can rely on the length: touching a page beyond the end would kill it.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            memory = np.frombuffer(mmap.mmap(descriptor, total), np.uint8)
            self._announce(len(self._segments), total, descriptor)
        finally:
            os.close(descriptor)
        segment = _Segment(memory, memory.__array_interface__["data"][0], [])
        self._segments.append(segment)
        return segment


class MappedArena:
    """The agent's side: the same segments, in the order in which they were announced."""

    def __init__(self) -> None:
        self._segments: list[Bytes] = []

    def add(self, number: int, size: int, descriptor: int) -> None:
        """Map an announced segment; closes the descriptor. ProtocolError when it is not what it should be."""
        try:
            if number != len(self._segments) or number >= MAX_SEGMENTS:
                raise ProtocolError(f"segment {number} was announced where {len(self._segments)} was due")
            if not 0 < size <= MAX_SEGMENT or os.fstat(descriptor).st_size != size:
                raise ProtocolError(f"segment {number} has not the announced {size} bytes")
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
                raise ProtocolError(f"segment {number} may still change its length")
            self._segments.append(np.frombuffer(mmap.mmap(descriptor, size), np.uint8))
        except OSError as error:
            raise ProtocolError(f"segment {number} cannot be mapped: {error}") from None
        finally:
            os.close(descriptor)

    def view(self, place: Any, dtype: Any, count: int) -> npt.NDArray[Any]:
        """An array at a worker's (segment, offset); ProtocolError when it does not lie within the segment."""
        try:
            segment, offset = place
            memory = self._segments[segment]
        except (TypeError, ValueError, IndexError):
            raise ProtocolError(f"there is no region {place!r}") from None
        if segment < 0 or offset < 0 or offset + np.dtype(dtype).itemsize * count > len(memory):
            raise ProtocolError(f"the region {place!r} of {count} {dtype} ends outside its segment")
        return _typed(memory, offset, dtype, count)


def _typed(memory: Bytes, offset: int, dtype: Any, count: int) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    return memory[offset : offset + kind.itemsize * count].view(kind)


def send_with_descriptor(sock: socket.socket, data: bytes, descriptor: int) -> None:
    """Send bytes with a descriptor attached to the first of them, on a blocking socket."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    sent = sock.sendmsg([data], rights)
    sock.sendall(data[sent:])


def receive_with_descriptors(sock: socket.socket, limit: int) -> tuple[bytes, list[int]]:
    """Some bytes and the descriptors that came with them."""
    descriptors = array.array("i")
    data, ancillary, _, _ = sock.recvmsg(
        limit, socket.CMSG_LEN(16 * descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)
