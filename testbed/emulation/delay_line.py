"""The delay line: the process that carries the WAN's frames where the kernel has no netem.

A link's two devices face the two switches. A direction that is attached here is read from one device with
AF_PACKET (whole segments of up to 64 KB, with their offload header), held as long as its impairment says,
and written to the other device, where it is then shaped. A direction that has no impairment need not be
attached: the kernel passes it on by itself, see `carrier`.

Run as `python -m testbed.emulation.delay_line --control SOCKET`. It is told what to do by JSON lines over
that UNIX socket (`Control`) and imports little, to start quickly and to wake quickly.
"""

from __future__ import annotations

import argparse
import errno
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from testbed.emulation.impairment import Impairment, Pipe
from topologies.unix_sockets import socket_address

SOL_PACKET: Final = 263
PACKET_STATISTICS: Final = 6
PACKET_VNET_HDR: Final = 15
PACKET_IGNORE_OUTGOING: Final = 23
SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
ETH_P_ALL: Final = 3

VNET_HEADER_BYTES: Final = 10
FRAME_BYTES: Final = VNET_HEADER_BYTES + 14 + 65_535
SOCKET_BYTES: Final = 64 * 2**20
BURST_FRAMES: Final = 32
"""How many frames of one direction are read before the others have their turn."""
PRIORITY: Final = 10

_DROPPED: Final = {errno.ENOBUFS: "queue", errno.EAGAIN: "queue", errno.ENETDOWN: "down", errno.ENXIO: "down"}


class Direction:
    """One attached direction: read from `ingress`, hold by `pipe`, write to `egress`."""

    def __init__(self, index: int, ingress: str, egress: str, pipe: Pipe) -> None:
        self.index = index
        self.pipe = pipe
        self.sink = _packet_socket(egress, receive=False)
        self.source = _packet_socket(ingress, receive=True)

    def poll_missed(self) -> None:
        """Add what the kernel dropped before it was read; reading the kernel's count sets it to zero."""
        _, dropped = struct.unpack("II", self.source.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self.pipe.counters.drops["missed"] += dropped

    def close(self) -> None:
        self.source.close()
        self.sink.close()


class DelayLine:
    """The loop: reads, holds and writes the frames of all attached directions, and serves the control socket.

    Args:
        control: a listening UNIX socket.
    """

    def __init__(self, control: socket.socket) -> None:
        self._directions: dict[int, Direction] = {}
        self._held: list[tuple[int, int, Direction, bytes]] = []
        self._sequence = 0
        self._control = control
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._watch(control.fileno(), self._accept)

    def run(self) -> None:
        """Until the process is ended."""
        held, epoll, handlers, clock = self._held, self._epoll, self._handlers, time.monotonic_ns
        waiting = [epoll.fileno()]
        while True:
            now = clock()
            while held and held[0][0] <= now:
                release, _, direction, frame = heapq.heappop(held)
                self._send(direction, frame, release)
                now = clock()
            # select() takes microseconds; epoll's own timeout has steps of a millisecond.
            select.select(waiting, (), (), (held[0][0] - now) / 1e9 if held else None)
            for fd, _ in epoll.poll(0):
                handler = handlers.get(fd)
                if handler is not None:
                    handler()

    def _receive(self, direction: Direction) -> None:
        receive, admit, held = direction.source.recv, direction.pipe.admit, self._held
        try:
            for _ in range(BURST_FRAMES):
                frame = receive(FRAME_BYTES, socket.MSG_DONTWAIT)
                release = admit(len(frame) - VNET_HEADER_BYTES, time.monotonic_ns())
                if release is not None:
                    self._sequence += 1
                    heapq.heappush(held, (release, self._sequence, direction, frame))
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in _DROPPED:
                raise  # the device is gone: this testbed cannot go on

    def _send(self, direction: Direction, frame: bytes, release: int) -> None:
        size = len(frame) - VNET_HEADER_BYTES
        try:
            direction.sink.send(frame, socket.MSG_DONTWAIT)
        except OSError as error:
            cause = _DROPPED.get(error.errno or 0)
            if cause is None:
                raise
            direction.pipe.lost(size, cause)
        else:
            direction.pipe.released(size, time.monotonic_ns() - release)

    # Control: one JSON object a line, answered by one.

    def _accept(self) -> None:
        connection, _ = self._control.accept()
        lines = connection.makefile("rwb", buffering=0)

        def serve() -> None:
            line = lines.readline()
            if not line:
                self._unwatch(connection.fileno())
                lines.close()
                connection.close()
                return
            lines.write(json.dumps(self._answer(line)).encode() + b"\n")

        self._watch(connection.fileno(), serve)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, "result": getattr(self, f"do_{request.pop('op')}")(**request)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def do_attach(
        self,
        *,
        index: int,
        ingress: str,
        egress: str,
        impairment: dict[str, Any],
        limit_bytes: int,
        seed: int,
    ) -> None:
        """Carry a direction from now on."""
        if index in self._directions:
            raise ValueError(f"direction {index} is attached already")
        direction = Direction(index, ingress, egress, Pipe(Impairment(**impairment), limit_bytes, seed))
        self._directions[index] = direction
        self._watch(direction.source.fileno(), lambda: self._receive(direction))

    def do_set(self, *, index: int, impairment: dict[str, Any], limit_bytes: int) -> None:
        """Change a direction's impairment; frames already held keep their times."""
        pipe = self._directions[index].pipe
        pipe.impairment = Impairment(**impairment)
        pipe.limit_bytes = limit_bytes

    def do_held(self, *, index: int) -> int:
        """How many frames a direction holds."""
        return self._directions[index].pipe.held_frames

    def do_detach(self, *, index: int) -> dict[str, Any]:
        """Stop carrying a direction; the answer is its counters. What it holds is still sent in time."""
        direction = self._directions.pop(index)
        self._receive(direction)
        self._unwatch(direction.source.fileno())
        direction.poll_missed()
        direction.source.close()  # the sink closes with the last held frame
        return direction.pipe.counters.to_dict()

    def do_counters(self) -> dict[str, dict[str, Any]]:
        """The counters of every attached direction, by its index (as text, as JSON's keys are)."""
        result = {}
        for index, direction in self._directions.items():
            direction.poll_missed()
            pipe = direction.pipe
            held = {"held_frames": pipe.held_frames, "held_bytes": pipe.held_bytes}
            result[str(index)] = pipe.counters.to_dict() | held
        return result

    def do_info(self) -> dict[str, Any]:
        """Whether real-time scheduling was granted, and this process's CPU time."""
        times = os.times()
        realtime = os.sched_getscheduler(0) == os.SCHED_FIFO
        return {"pid": os.getpid(), "realtime": realtime, "cpu_s": times.user + times.system}

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._handlers[fd]


def _packet_socket(device: str, *, receive: bool) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BYTES)
    if receive:
        sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BYTES)
    sock.bind((device, ETH_P_ALL if receive else 0))
    return sock


def be_punctual() -> bool:
    """Ask for real-time scheduling. Refused in some containers; frames are then later under load."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.emulation.delay_line", description=__doc__)
    parser.add_argument("--control", type=Path, required=True, help="path of the UNIX socket to serve")
    arguments = parser.parse_args()
    control = socket.socket(socket.AF_UNIX)
    with socket_address(arguments.control) as address:
        control.bind(address)
    control.listen()
    be_punctual()
    DelayLine(control).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
