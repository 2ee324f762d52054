"""Point-to-point messages at one site: those that came before their `recv`, and the `recv`s that wait.

Messages with the same sender, receiver and tag are matched in order. They are outside the numbered
collectives, so nothing bounds how early they come; a worker that never receives is caught by a limit on the
bytes kept.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from agents.wire import fresh_buffer
from topologies.errors import RunFailedError

MAX_KEPT_BYTES: Final = 1024**3


class Line(NamedTuple):
    """What keeps its order: sender rank, receiver rank, tag."""

    src: int
    dst: int
    tag: int

    def __str__(self) -> str:
        return f"from rank {self.src} to rank {self.dst} with tag {self.tag}"


@dataclass(slots=True)
class Waiting:
    """A posted receive: where the bytes go, and what to do when they are there."""

    place: memoryview
    received: Callable[[], None]


class Mailbox:
    """The messages of one job at one site."""

    def __init__(self) -> None:
        self.kept_bytes = 0
        self._kept: defaultdict[Line, deque[memoryview]] = defaultdict(deque)
        self._waiting: defaultdict[Line, deque[Waiting]] = defaultdict(deque)

    def place(self, line: Line, nbytes: int) -> memoryview:
        """Where to read a message that is about to arrive: straight to its receiver if one waits."""
        waiting = self._waiting.get(line)
        if waiting and len(waiting[0].place) == nbytes:
            return waiting[0].place
        if self.kept_bytes + nbytes > MAX_KEPT_BYTES:
            raise RunFailedError(
                f"more than {MAX_KEPT_BYTES >> 20} MiB of messages wait unreceived, the last one {line}"
            )
        return fresh_buffer({}, nbytes)

    def arrived(self, line: Line, payload: memoryview) -> None:
        """A message is here, in the memory that `place` named or elsewhere."""
        waiting = self._waiting.get(line)
        if waiting:
            first = waiting.popleft()
            if not waiting:
                del self._waiting[line]
            self._hand_over(line, payload, first)
            return
        self._kept[line].append(payload)
        self.kept_bytes += len(payload)

    def post(self, line: Line, place: memoryview, received: Callable[[], None]) -> None:
        """A receive. RunFailedError when the message that is due has another length."""
        kept = self._kept.get(line)
        if not kept:
            self._waiting[line].append(Waiting(place, received))
            return
        payload = kept.popleft()
        if not kept:
            del self._kept[line]
        self.kept_bytes -= len(payload)
        self._hand_over(line, payload, Waiting(place, received))

    def _hand_over(self, line: Line, payload: memoryview, waiting: Waiting) -> None:
        if len(payload) != len(waiting.place):
            raise RunFailedError(
                f"the message {line} has {len(payload)} bytes, but its receiver expects {len(waiting.place)}"
            )
        if payload is not waiting.place and len(payload):
            waiting.place[:] = payload
        waiting.received()
