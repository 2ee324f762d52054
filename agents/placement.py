"""Where frames of many jobs wait: the order among jobs beside the order within each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Order = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a frame waits among those of other jobs: its lane's class and stream, and its key there.

    Frames without a key go before all that have one.
    """

    cls: int = 0
    stream: int = 0
    key: Order = ()


@dataclass(order=True, slots=True)
class Waiting:
    """A frame that has not begun to leave. `order` counts within its job, `key` among jobs."""

    key: Order
    order: Order
    arrival: int
    head: bytes = field(compare=False)
    payload: memoryview = field(compare=False)
    owner: str = field(compare=False)
    sent: Callable[[], None] | None = field(compare=False)
    stamp: bool = field(compare=False)
    placed: bool = field(compare=False, default=False)
    since_ns: int = field(compare=False, default=0)
