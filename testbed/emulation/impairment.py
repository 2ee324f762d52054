"""What one direction of a link does to frames besides its rate: delay, jitter, loss, silence. Pure.

Frames keep their order whatever the jitter: a frame is never released before the one ahead of it, because
reordering is a different fault than a varying delay and makes TCP retransmit for nothing.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LATENESS_BOUNDS_S: Final = (
    *(50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 400e-6, 600e-6, 800e-6),
    *(1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3),
)
"""Upper bounds of the lateness histogram's buckets; one more holds what is later still."""

LULL_NS: Final = 100_000_000
"""A silence that ends a burst. What comes after it, such as TCP's lone retransmission (200 ms or more after the last
packet), is lost with the mean probability: counted in packets alone, a burst would outlast every give-up, because
nothing but these retransmissions could end it.
"""

_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in LATENESS_BOUNDS_S)


@dataclass(frozen=True, slots=True)
class Impairment:
    """Delay and jitter in ns, loss as a ratio of frames; `blackhole` drops everything without a sign.

    The delay of a frame is drawn evenly from delay ± jitter, never below zero. With `burst` above zero losses
    come in runs of so many frames on average, by Gilbert's model (see `topologies.units.Loss`); with zero every
    frame is drawn by itself.
    """

    delay_ns: int = 0
    jitter_ns: int = 0
    loss: float = 0.0
    blackhole: bool = False
    burst: float = 0.0

    @property
    def is_none(self) -> bool:
        """Whether frames pass untouched, so that the kernel may carry them without the delay line."""
        return not (self.delay_ns or self.jitter_ns or self.loss or self.blackhole)


@dataclass(slots=True)
class Counters:
    """What a direction has carried and dropped since it was attached. Frames may be segments of up to 64 KB.

    Drops by cause: `loss` as declared; `blackhole`; `queue` the class's queue was full; `overflow` the
    delay line held its limit; `down` the device was down; `missed` the delay line read too late and the
    kernel dropped.
    """

    frames: int = 0
    bytes: int = 0
    drops: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("loss", "blackhole", "queue", "overflow", "down", "missed"), 0)
    )
    lateness: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))
    lateness_sum_ns: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "frames": self.frames,
            "bytes": self.bytes,
            "drops": dict(self.drops),
            "lateness": list(self.lateness),
            "lateness_sum_s": self.lateness_sum_ns / 1e9,
        }


class Pipe:
    """The rule by which one direction holds frames.

    Args:
        impairment: what it does to them.
        limit_bytes: how much it may hold.
        seed: of the loss and jitter draws.
    """

    __slots__ = (
        "_bad",
        "_random",
        "_seen_ns",
        "counters",
        "held_bytes",
        "held_frames",
        "impairment",
        "last_release_ns",
        "limit_bytes",
    )

    def __init__(self, impairment: Impairment, limit_bytes: int, seed: int) -> None:
        self.impairment = impairment
        self.limit_bytes = limit_bytes
        self.counters = Counters()
        self.held_frames = 0
        self.held_bytes = 0
        self.last_release_ns = 0
        self._bad = False
        self._seen_ns = 0
        self._random = random.Random(seed).random

    def admit(self, size: int, now_ns: int) -> int | None:
        """When a frame of `size` bytes that arrived now is to leave, or None when it is dropped."""
        how = self.impairment
        if how.blackhole:
            self.counters.drops["blackhole"] += 1
            return None
        if how.loss and self._loses(how, now_ns):
            self.counters.drops["loss"] += 1
            return None
        if self.held_bytes + size > self.limit_bytes:
            self.counters.drops["overflow"] += 1
            return None
        release = now_ns + how.delay_ns
        if how.jitter_ns:
            release = max(now_ns, release + int((2 * self._random() - 1) * how.jitter_ns))
        if release < self.last_release_ns:
            release = self.last_release_ns
        self.last_release_ns = release
        self.held_frames += 1
        self.held_bytes += size
        return release

    def _loses(self, how: Impairment, now_ns: int) -> bool:
        """Whether the next frame is lost; in bursts, the state of the frame before it counts."""
        if not how.burst:
            return self._random() < how.loss
        lull, self._seen_ns = now_ns - self._seen_ns > LULL_NS, now_ns
        if lull:
            self._bad = self._random() < how.loss
            return self._bad
        if self._bad:
            self._bad = self._random() >= 1 / how.burst
        else:
            # All lost at a loss of one, which no burst length can be declared for.
            self._bad = how.loss == 1 or self._random() < how.loss / (1 - how.loss) / how.burst
        return self._bad

    def released(self, size: int, late_ns: int) -> None:
        """A frame has been sent, `late_ns` after its time."""
        self._gone(size)
        counters = self.counters
        counters.frames += 1
        counters.bytes += size
        counters.lateness[bisect_left(_BOUNDS_NS, late_ns)] += 1
        counters.lateness_sum_ns += late_ns

    def lost(self, size: int, cause: str) -> None:
        """A held frame could not be sent."""
        self._gone(size)
        self.counters.drops[cause] += 1

    def _gone(self, size: int) -> None:
        self.held_frames -= 1
        self.held_bytes -= size


def quantile_s(buckets: Sequence[int], q: float) -> float | None:
    """The bound in seconds below which a share `q` of a lateness histogram lies; None when it is empty.

    Infinite when that share lies beyond the last bound.
    """
    total = sum(buckets)
    if not total:
        return None
    seen = 0
    for count, bound in zip(buckets, LATENESS_BOUNDS_S, strict=False):
        seen += count
        if seen >= q * total:
            return bound
    return float("inf")
