"""The agent's end of its workers' connections: a pathname UNIX socket, small frames, shared memory.

What the frames mean is the job's matter (`agents.site_job`); here they are only moved. Only the process that
the kernel names as the peer (SO_PEERCRED) is believed to be a worker's pid.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from agents import wire
from agents.shared_memory import MappedArena, receive_with_descriptors
from agents.wire import Header, ProtocolError
from topologies.unix_sockets import socket_address

SOCKET_NAME: Final = "agent.sock"
READ_BYTES: Final = 64 * 1024
PING_SECONDS: Final = 5.0
MAX_UNSENT: Final = 4 * 1024 * 1024


class LinkOwner(Protocol):
    """What a link needs from the agent."""

    def worker_said(self, link: WorkerLink, header: Header) -> None:
        """A frame. A StormbedError ends the link with that as its reason."""

    def worker_gone(self, link: WorkerLink, reason: str) -> None:
        """The connection ended; called once, not after `close`."""


class WorkerLink:
    """One worker's connection."""

    def __init__(self, sock: socket.socket, owner: LinkOwner, on_end: Callable[[WorkerLink], None]) -> None:
        sock.setblocking(False)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]
        self.arena = MappedArena()
        self.closed = False
        self._socket = sock
        self._owner = owner
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._decoder = wire.Decoder()
        self._descriptors: list[int] = []
        self._unsent = bytearray()
        self._loop.add_reader(sock, self._readable)
        # The socket's end tells nothing while a child process of the worker still has it open.
        self._process: int | None = None
        with contextlib.suppress(OSError):
            self._process = os.pidfd_open(self.pid)
            self._loop.add_reader(self._process, self._exited)
        self._ping = self._loop.call_later(PING_SECONDS, self._send_ping)

    def send(self, header: Mapping[str, Any], body: Any = None) -> None:
        """Queue a small frame; nothing happens when the link has ended. `body` is what no header may hold."""
        if self.closed:
            return
        data = wire.encode_bytes(header, b"" if body is None else wire.pack_body(body))
        if not self._unsent:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the reader sees the end too, after what the worker said last
            if data:
                self._loop.add_writer(self._socket, self._writable)
        self._unsent += data
        if len(self._unsent) > MAX_UNSENT:
            self._end("it does not read what its agent says")

    def close(self) -> None:
        """End the link without a report."""
        if self.closed:
            return
        self.closed = True
        self._ping.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        if self._process is not None:
            self._loop.remove_reader(self._process)
            os.close(self._process)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._on_end(self)

    def _exited(self) -> None:
        """The process is gone; what it said before still counts."""
        while not self.closed and self._readable():
            pass
        self._end("")

    def _readable(self) -> bool:
        """Read once; whether there was anything."""
        try:
            data, descriptors = receive_with_descriptors(self._socket, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._end(f"its connection failed: {error.strerror}")
            return False
        self._descriptors += descriptors
        if not data:
            self._end("")
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                if self.closed:
                    return
                if frame.header.get("kind") == "arena":
                    self._map(frame.header)
                else:
                    self._owner.worker_said(self, frame.header)
        except ProtocolError as error:
            self._end(f"it broke the protocol: {error}")

    def _map(self, header: Header) -> None:
        number, size = header.get("segment"), header.get("nbytes")
        if not self._descriptors or not isinstance(number, int) or not isinstance(size, int):
            raise ProtocolError(f"no descriptor came with {header}")
        self.arena.add(number, size, self._descriptors.pop(0))

    def _writable(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _send_ping(self) -> None:
        self.send({"kind": "ping"})
        if not self.closed:
            self._ping = self._loop.call_later(PING_SECONDS, self._send_ping)

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._owner.worker_gone(self, reason)


class LocalServer:
    """Listens for this site's workers.

    Args:
        path: the socket's path; its directory exists. A socket left there by an earlier agent is replaced.
        owner: gets the frames.
    """

    def __init__(self, path: Path, owner: LinkOwner) -> None:
        self._path = path
        self._owner = owner
        self._links: set[WorkerLink] = set()
        self._listener: socket.socket | None = None

    def start(self) -> None:
        """Listen; raises OSError when the path cannot be used."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_address(self._path) as name:
                Path(name).unlink(missing_ok=True)
                listener.bind(name)
                Path(name).chmod(0o600)
            listener.listen(256)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        """End all links without reports and remove the socket."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)
        for link in tuple(self._links):
            link.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            sock, _ = self._listener.accept()
            self._links.add(WorkerLink(sock, self._owner, self._links.discard))
