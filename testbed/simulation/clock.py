"""A virtual clock: events in order of time, then of scheduling. Nothing here reads a real clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable

SECOND = 1_000_000_000
Action = Callable[[], object]


class VirtualClock:
    """Integer nanoseconds, so that equal times are equal and a run repeats exactly.

    `before_advance` runs whenever every event of the present instant has been handled: work that depends on
    the whole instant (sharing links anew) is done once, not after each event.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.before_advance: Action | None = None
        self.events = 0
        self._heap: list[tuple[int, int, Action]] = []
        self._count = 0

    def at(self, time_ns: int, action: Action) -> None:
        """Run `action` at `time_ns`; a time already past means now."""
        self._count += 1
        heapq.heappush(self._heap, (max(time_ns, self.now_ns), self._count, action))

    @property
    def pending(self) -> int:
        """Events still to come."""
        return len(self._heap)

    def after(self, delay_ns: int, action: Action) -> None:
        self.at(self.now_ns + delay_ns, action)

    def step(self) -> bool:
        """Handle one event; False when nothing is left to happen."""
        if self.before_advance is not None and (not self._heap or self._heap[0][0] > self.now_ns):
            self.before_advance()
        if not self._heap:
            return False
        self.now_ns, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()
        return True

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int | None = None) -> bool:
        """Handle events until `until()` holds (True), none is left, or the next is past `limit_ns`."""
        while until is None or not until():
            if limit_ns is not None and self._next_ns() > limit_ns:
                return False
            if not self.step():
                return until is None
        return True

    def _next_ns(self) -> int:
        if self.before_advance is not None and (not self._heap or self._heap[0][0] > self.now_ns):
            self.before_advance()
        return self._heap[0][0] if self._heap else self.now_ns
