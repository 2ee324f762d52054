"""A worker's connection to its agent: frames out, frames in on one reader thread, memory that both see."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agents import wire
from agents.handles import Handle
from agents.shared_memory import Arena, send_with_descriptor
from agents.wire import Frame, Header, ProtocolError
from topologies.errors import DeadlineError, RunFailedError
from topologies.unix_sockets import socket_address

# The agent sends a sign of life every few seconds.
SILENCE_SECONDS: Final = 60
RETRY_SECONDS: Final = 0.05
JOIN_READER_SECONDS: Final = 5.0


class LocalLink:
    """One worker's end of the connection. Thread-safe.

    Args:
        sock: connected, see `dial`.
        site, job: for messages.

    Attributes:
        arena: where the worker puts what the agent shall see.
        welcome: the agent's answer to the join; empty before it came.
        segments: the fields of segments; None when there are no more, or the job has stopped.
    """

    def __init__(self, sock: socket.socket, site: str, job: str) -> None:
        self.site = site
        self.job = job
        self.arena = Arena(self._announce)
        self.welcome: Header = {}
        self.segments: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._socket = sock
        self._send_lock = threading.Lock()
        self._lock = threading.Lock()
        self._expected: dict[tuple[str, int], tuple[Handle, Callable[[], None]]] = {}
        self._answered = threading.Event()
        self._failure: RunFailedError | None = None
        self._leaving = False
        self._reader = threading.Thread(target=self._read, name="stormbed-reader", daemon=True)
        self._reader.start()

    def join(self, worker: int, seconds: float) -> bool:
        """Ask to be a worker of the job; False when there was no answer in time."""
        self.send({"kind": "join", "job": self.job, "worker": worker, "version": wire.VERSION})
        if not self._answered.wait(seconds):
            return False
        self.check()
        return True

    def expect(self, key: tuple[str, int], handle: Handle, finish: Callable[[], None]) -> None:
        """Before the request is sent: when the agent reports `key`, call `finish`, then end the handle.

        RunFailedError when the job has stopped meanwhile: whoever ends all handles then has ended those that
        were here, and would never hear of this one.
        """
        with self._lock:
            self.check()
            self._expected[key] = (handle, finish)

    def send(self, header: Header) -> None:
        """A frame to the agent. RunFailedError when it cannot be reached."""
        frame = wire.encode_bytes(header)
        with self._send_lock:
            try:
                self._socket.sendall(frame)
            except OSError as error:
                raise self._unreachable(error) from None

    def try_send(self, header: Header) -> None:
        """A frame to the agent if it is there; if not, whoever waits on this link hears of it anyway."""
        try:
            self.send(header)
        except RunFailedError:
            pass

    def check(self) -> None:
        """RunFailedError with the cause when the job has stopped, or this worker has left it."""
        if self._failure is not None:
            raise RunFailedError(self._failure.message, hint=self._failure.hint)
        if self._leaving:
            raise RunFailedError(f"this worker of {self.site} has left job {self.job}")

    def leave(self) -> bool:
        """Leave the job in good order and hang up; False when that was done before."""
        with self._lock:
            if self._leaving:
                return False
            self._leaving = True
        self.try_send({"kind": "leave"})
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout=JOIN_READER_SECONDS)
        self._socket.close()
        return True

    def _announce(self, number: int, size: int, descriptor: int) -> None:
        frame = wire.encode_bytes({"kind": "arena", "segment": number, "nbytes": size})
        with self._send_lock:
            try:
                send_with_descriptor(self._socket, frame, descriptor)
            except OSError as error:
                raise self._unreachable(error) from None

    def _unreachable(self, error: OSError) -> RunFailedError:
        # The agent hung up; what it said before that tells why, once the reader has come to it.
        if not self._leaving and threading.current_thread() is not self._reader:
            self._reader.join(timeout=JOIN_READER_SECONDS)
        if self._failure is not None:
            return RunFailedError(self._failure.message, hint=self._failure.hint)
        return RunFailedError(f"the agent of {self.site} cannot be reached: {error.strerror}")

    # ---- the reader thread

    def _read(self) -> None:
        try:
            reason = self._read_until_the_end()
        except OSError as error:
            reason = f"the connection to the agent of {self.site} failed: {error.strerror}"
        except ProtocolError as error:
            reason = f"the agent of {self.site} broke the protocol: {error}"
        if self._leaving:
            reason = f"this worker of {self.site} has left job {self.job}"
        self._fail(RunFailedError(reason))

    def _read_until_the_end(self) -> str:
        decoder = wire.Decoder()
        while True:
            try:
                count = self._socket.recv_into(decoder.buffer())
            except BlockingIOError:  # SO_RCVTIMEO
                return f"the agent of {self.site} was silent for {SILENCE_SECONDS} s"
            if not count:
                return f"the agent of {self.site} ended"
            decoder.advance(count)
            while (frame := decoder.next_frame()) is not None:
                try:
                    self._handle(frame)
                except (KeyError, TypeError) as error:
                    raise ProtocolError(f"malformed frame {frame.header}: {error!r}") from None

    def _handle(self, frame: Frame) -> None:
        header = frame.header
        kind = header.get("kind")
        if kind == "done":
            self._complete(("call", header["seq"]))
        elif kind == "sent":
            self._complete(("send", header["id"]))
        elif kind == "received":
            self._complete(("recv", header["id"]))
        elif kind == "segment":
            self.segments.put(wire.unpack_body(frame.payload))
        elif kind == "end":
            self.segments.put(None)
        elif kind == "joined":
            self.welcome = header
            self._answered.set()
        elif kind == "failed":
            self._fail(RunFailedError(header["why"]))
        elif kind != "ping":
            raise ProtocolError(f"unknown frame {header}")

    def _complete(self, key: tuple[str, int]) -> None:
        with self._lock:
            found = self._expected.pop(key, None)
        if found is None:
            if self._failure is not None:
                return  # the handle was told already
            raise ProtocolError(f"{key[0]} {key[1]} is over, but was not under way")
        handle, finish = found
        finish()
        handle.finish()

    def _fail(self, error: RunFailedError) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
            expected, self._expected = list(self._expected.values()), {}
        for handle, _ in expected:
            handle.finish(self._failure)
        self.segments.put(None)
        self._answered.set()


def dial(path: Path, site: str, timeout: float) -> socket.socket:
    """Connect to an agent's socket, which may not be there yet. DeadlineError when it does not come."""
    deadline = time.monotonic() + timeout
    waiter = threading.Event()
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_address(path) as name:
                sock.connect(name)
            break
        except OSError as error:
            sock.close()
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise DeadlineError(
                    f"the agent of {site} to listen at {path}",
                    timeout,
                    hint=f"{error.strerror}; is it running?",
                ) from None
            waiter.wait(RETRY_SECONDS)
    limit = struct.pack("ll", SILENCE_SECONDS, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return sock
