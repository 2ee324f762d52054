"""Which of the connections that leave by one link may send now. Pure; `agents.uplink` asks it for real ones.

A gate holds back a connection while another one, whose next chunk goes before its own, can use the link. That
other one counts as long as it moves: when it has handed nothing to the kernel for `patience_s` it is held up
somewhere else (a slower link further on, a receiver), and the link must not idle for it. Source: own; the
authors of Sincronia gate at the sender too, one chunk at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from agents.coflow.base import CoflowError

Key = tuple[float, ...]
LaneT = TypeVar("LaneT")

PATIENCE_S = 0.05


@dataclass
class _Waiting:
    key: Key
    moved_s: float


class UplinkGate(Generic[LaneT]):
    """The connections that leave by one link.

    Args:
        patience_s: how long the first in line may stand still before others may pass it.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        if not patience_s > 0:
            raise CoflowError(f"a gate with a patience of {patience_s} s", hint="more than 0")
        self.patience_s = patience_s
        self._waiting: dict[LaneT, _Waiting] = {}

    def wants(self, lane: LaneT, key: Key, now: float) -> None:
        """A connection has something to send; the smallest key goes first. Its stillness counts from when it

        first wanted to, or last moved.
        """
        entry = self._waiting.get(lane)
        if entry is None:
            self._waiting[lane] = _Waiting(key, now)
        else:
            entry.key = key

    def moved(self, lane: LaneT, now: float) -> None:
        """The kernel took bytes of it."""
        entry = self._waiting.get(lane)
        if entry is not None:
            entry.moved_s = now

    def idle(self, lane: LaneT) -> bool:
        """It has nothing more to send; whether that may let others pass."""
        return self._waiting.pop(lane, None) is not None

    def admits(self, lane: LaneT, now: float) -> bool:
        """Whether it may send now. One that wants nothing is let through."""
        return self.held_until(lane, now) is None

    def held_until(self, lane: LaneT, now: float) -> float | None:
        """When a held connection may pass at the latest if those before it stand still; None = it may now."""
        own = self._waiting.get(lane)
        if own is None:
            return None
        ends = [
            other.moved_s + self.patience_s
            for name, other in self._waiting.items()
            if name != lane and other.key < own.key
        ]
        latest = max(ends, default=now)
        return latest if latest > now else None

    @property
    def first(self) -> LaneT | None:
        """Whose turn it is were all of them to move."""
        return min(self._waiting, key=lambda lane: self._waiting[lane].key, default=None)
