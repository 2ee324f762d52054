"""What tells the time and calls back: an asyncio loop in the emulated world, the virtual clock in the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is due."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """The part of an asyncio loop that decisions need; seconds of one monotonic clock."""

    def time(self) -> float: ...

    def call_soon(self, callback: Callable[[], object], /) -> Timer: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer: ...
