"""From successive readings of the links' counters to the rows of `links.csv`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.report.measurements import LinkSample


@dataclass(frozen=True)
class LinkCounters:
    """What one directed link has carried and dropped since it was made, and its present rate."""

    src: str
    dst: str
    configured_bps: int
    carried_bytes: int
    dropped_packets: int


class LinkMeter:
    """Turns counters into samples.

    Args:
        began_ns: the run's beginning on the monotonic clock; `t_s` of the samples counts from it.
    """

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self._last_ns = began_ns
        self._last: dict[tuple[str, str], LinkCounters] = {}

    def advance(self, now_ns: int, segment: str, counters: Iterable[LinkCounters]) -> list[LinkSample]:
        """What each link did since the reading before this one, all of it counted to `segment`.

        The first reading only sets the start and gives nothing. A counter that went back, of a link that was
        made anew, counts from zero.
        """
        interval_s = (now_ns - self._last_ns) / 1e9
        samples: list[LinkSample] = []
        for link in counters:
            key = (link.src, link.dst)
            before = self._last.get(key)
            self._last[key] = link
            if before is None or interval_s <= 0:
                continue
            carried = _gain(before.carried_bytes, link.carried_bytes)
            samples.append(
                LinkSample(
                    t_s=(now_ns - self.began_ns) / 1e9,
                    interval_s=interval_s,
                    segment=segment,
                    src=link.src,
                    dst=link.dst,
                    configured_bps=link.configured_bps,
                    achieved_bps=carried * 8 / interval_s,
                    carried_bytes=carried,
                    dropped_packets=_gain(before.dropped_packets, link.dropped_packets),
                )
            )
        self._last_ns = now_ns
        return samples


def _gain(before: int, now: int) -> int:
    return now - before if now >= before else now
