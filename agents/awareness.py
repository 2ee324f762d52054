"""Estimates of links and paths from the training's own messages, made where these arrive. Pure.

A `Sample` is one message of one sender over one path: when it began to leave the sender's queue (its stamp),
when its last byte was there. One estimator serves one (sender, path): a path of one hop is a directed link.
Both estimators take samples in order of arrival and say what is worth a report.

`Published` (NetStorm, van.cc: Sending, ProcessRecvReplyCommand): the one-way time of every message above a
size. It contains what of the messages before it was still under way when this one left the queue, so on
exactly the busy links it comes out low, the more the deeper the sender's own buffers are.

`Unbiased` (own): while a link is busy, messages arrive one behind the other, and what lies between two
arrivals is the time that the link took for the second: size / (done_k - done_(k-1)), if the sender had bytes
of k-1 yet to send when k began to leave. A message that met an idle link took done - left. Such times are
summed up over a window, so what one arrival is noticed late is made up by the next. Two things only bound the
rate from below, and never lower an estimate: the first round trips of a busy period, in which TCP finds the
rate, and a message alone that took not much longer than these.
Other traffic on the link is not seen: the estimate is the share that this sender got.

Stamps and arrivals are seconds of one monotonic clock, which sites of one machine share. Elsewhere clocks
must be synchronised for `Published`; `Unbiased` needs them only for messages that met an idle link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from agents.options import AwarenessOptions

# Round trips after which a busy period has filled the path: TCP begins with 10 segments and doubles.
RAMP_ROUND_TRIPS: Final = 4
# A message alone that took so many times longer than that is timed well enough in spite of it.
RAMP_SHARE: Final = 10
# Estimates over less time than this say more about when a process ran than about the link.
SHORTEST_STRETCH_S: Final = 0.02
# A change that the unbiased estimator reports; one that is smaller waits for REFRESH_S.
NOTICEABLE: Final = 0.02
REFRESH_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One message over one path, all times in seconds.

    size     payload bytes
    left     when it began to leave the sender's queue
    done     when all of it had arrived
    follows  True: the sender's kernel still held unsent bytes of the message before; False: all of that had
             arrived; None: in between
    """

    size: int
    left: float
    done: float
    follows: bool | None = None


class Estimator(Protocol):
    """What measures one (sender, path)."""

    @property
    def rate(self) -> float | None:
        """The latest estimate in bit/s; None before the first."""
        ...

    def observe(self, sample: Sample) -> float | None:
        """Take the next sample; bit/s when there is something to report."""
        ...

    def age(self, now: float) -> float | None:
        """Seconds since the estimate was made or confirmed; None before the first."""
        ...


class Published:
    """Sum of sizes over sum of one-way times, over windows of messages that are large enough.

    A window's rate is reported when it differs by more than REPORT_RATE from the last one reported; the first
    always is. Nothing decays.

    Args:
        window: NUM_MSG_REPORT.
        min_bytes: SIZE_MSG_REPORT.
        report_rate: REPORT_RATE.
    """

    def __init__(self, window: int = 4, min_bytes: int = 2_000_000, report_rate: float = 0.0) -> None:
        self._window = window
        self._min_bytes = min_bytes
        self._report_rate = report_rate
        self._count = 0
        self._bytes = 0
        self._seconds = 0.0
        self._rate: float | None = None
        self._reported: float | None = None
        self._at = 0.0

    @property
    def rate(self) -> float | None:
        return self._rate

    def observe(self, sample: Sample) -> float | None:
        if sample.size < self._min_bytes:
            return None
        self._count += 1
        self._bytes += sample.size
        self._seconds += sample.done - sample.left
        if self._count < self._window:
            return None
        total, seconds = self._bytes, self._seconds
        self._count, self._bytes, self._seconds = 0, 0, 0.0
        if seconds <= 0:
            return None  # clocks that disagree by more than the transfer took
        rate = 8 * total / seconds
        self._rate, self._at = rate, sample.done
        if self._reported is not None and not relative_change(self._reported, rate) > self._report_rate:
            return None
        self._reported = rate
        return rate

    def age(self, now: float) -> float | None:
        return None if self._rate is None else max(0.0, now - self._at)


@dataclass(slots=True)
class _Stretch:
    """Samples that are added up until they make an estimate."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, size: int, seconds: float, enough: int) -> float | None:
        """Their rate in bit/s, once there are `enough` of them over enough time; then it begins anew."""
        self.count += 1
        self.bytes += size
        self.seconds += seconds
        if self.count < enough or self.seconds < SHORTEST_STRETCH_S:
            return None
        rate = 8 * self.bytes / self.seconds
        self.count, self.bytes, self.seconds = 0, 0, 0.0
        return rate


class Unbiased:
    """Bytes over time between arrivals.

    Args:
        delay_s: one-way delay of the path without load.
        window: messages in one estimate.
    """

    def __init__(self, delay_s: float = 0.0, window: int = 4) -> None:
        self._delay = delay_s
        self._ramp = RAMP_ROUND_TRIPS * 2 * delay_s
        self._window = window
        self._last_done: float | None = None
        self._busy_since = 0.0
        self._whole = _Stretch()
        self._least = _Stretch()
        self._rate: float | None = None
        self._at = 0.0
        self._reported: float | None = None
        self._reported_at = 0.0

    @property
    def rate(self) -> float | None:
        return self._rate

    def observe(self, sample: Sample) -> float | None:
        last, self._last_done = self._last_done, sample.done
        follows = sample.follows
        if follows is None:
            follows = last is not None and sample.left + self._delay <= last
            if not follows:
                return None  # part of its time may be that of what went before
        if last is None or not follows:
            self._busy_since = sample.left
            took = sample.done - sample.left
            whole = took >= RAMP_SHARE * self._ramp
        else:
            took = sample.done - last
            whole = last >= self._busy_since + self._ramp
        if took <= 0:
            return None  # two arrivals in one moment, or clocks that disagree
        rate = (self._whole if whole else self._least).add(sample.size, took, self._window)
        if rate is None or not (whole or self._rate is None or rate > self._rate):
            return None
        return self._estimate(rate, sample.done)

    def age(self, now: float) -> float | None:
        return None if self._rate is None else max(0.0, now - self._at)

    def _estimate(self, rate: float, now: float) -> float | None:
        self._rate, self._at = rate, now
        if (
            self._reported is not None
            and relative_change(self._reported, rate) <= NOTICEABLE
            and now - self._reported_at < REFRESH_S
        ):
            return None
        self._reported, self._reported_at = rate, now
        return rate


def make_estimator(options: AwarenessOptions, delay_s: float) -> Estimator:
    """The estimator of one (sender, path) that a job's options ask for."""
    if options.estimator == "published":
        return Published(options.window, options.min_message_bytes, options.report_rate)
    return Unbiased(delay_s, options.window)


def relative_change(old: float, new: float) -> float:
    """|new - old| / old; infinite from 0."""
    if old == new:
        return 0.0
    return abs(new - old) / old if old else float("inf")


class IdleLinks:
    """Which links want a probe: those that carried nothing for `idle_s` since they were last used or probed.

    At most one at a time, the one idle longest, so that probes do not come together. Pure.
    """

    def __init__(self, links: tuple[int, ...], idle_s: float, now: float) -> None:
        self._idle_s = idle_s
        self._used = dict.fromkeys(links, now)

    def used(self, link: int, now: float) -> None:
        """Something was sent."""
        if link in self._used:
            self._used[link] = now

    def due(self, now: float) -> int | None:
        """The link to probe now, which counts as using it."""
        if not self._idle_s or not self._used:
            return None
        link = min(self._used, key=lambda link: (self._used[link], link))
        if now - self._used[link] < self._idle_s:
            return None
        self._used[link] = now
        return link
