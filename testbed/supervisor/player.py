"""Plays dynamics and a timeline on the links while traffic flows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from testbed.emulation import shaping, sysctls
from testbed.emulation.network import Network
from testbed.emulation.wan import Wan
from testbed.events import EventLog
from testbed.timeline import Step
from topologies.errors import StormbedError
from topologies.model import DirectedLink

LOOK_AHEAD: Final = 500
"""How many steps are looked at beforehand, to fit the sites to all of them at once."""
JOIN_S: Final = 15.0


class Player:
    """Applies steps at their times from a thread of its own; every rate of a step in one `tc -batch`.

    Args:
        wan, network: of the testbed.
        events: gets "link_changes" for every step: when it was due, when it was done, every value.
        lock: held while links are changed.
        steps: in order of time, which counts from `start`.
        record: keep every step in `applied`; without it they are only counted, for links that vary for days.
    """

    def __init__(
        self,
        wan: Wan,
        network: Network,
        events: EventLog,
        lock: threading.RLock,
        steps: Iterator[Step],
        *,
        record: bool = True,
    ) -> None:
        self._wan = wan
        self._network = network
        self._events = events
        self._lock = lock
        ahead, self._steps = itertools.tee(steps)
        self._ahead = list(itertools.islice(ahead, LOOK_AHEAD))
        self._before = wan.links
        self._touched: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, name="player", daemon=True)
        self._began_ns = 0
        self._record = record
        self.count = 0
        self.applied: list[dict[str, Any]] = []
        self.failure: str | None = None

    @property
    def began_ns(self) -> int:
        """When time zero was, on the monotonic clock."""
        return self._began_ns

    @property
    def playing(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; what is due at time zero has been done when this returns."""
        self._fit()
        self._began_ns = time.monotonic_ns()
        first = next(self._steps, None)
        if first is not None and first.t_s == 0:
            if not first.empty:
                self._apply(first)
            first = None
        self._steps = itertools.chain([] if first is None else [first], self._steps)
        self._thread.start()

    def stop(self) -> dict[str, Any] | None:
        """End, and give the links back the values that they had at `start`, up and without black holes.

        Returns when that was and what they are then, in the form of a step; None when nothing had changed.
        """
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)
        with self._lock:
            for index in sorted(self._touched):
                self._cut({index: False}, {index: False})
            self._wan.change({i: self._before[i] for i in sorted(self._touched)})
            now_ns = time.monotonic_ns()
            self._network.fit_links(self._wan.links)
        if not self._touched:
            return None
        links = [self._wan.states[i].describe() for i in sorted(self._touched)]
        return {"applied_ns": now_ns, "links": links}

    def _play(self) -> None:
        for step in self._steps:
            left = step.t_s - (time.monotonic_ns() - self._began_ns) / 1e9
            if self._stop.wait(max(0.0, left)):
                return
            if step.empty:
                continue
            try:
                self._apply(step)
            except StormbedError as error:
                self.failure = str(error)
                self._events.write("problem", text=f"the links could not be changed: {error}")
                return

    def _apply(self, step: Step) -> None:
        # Whoever stops this holds the lock while waiting for the thread.
        while not self._lock.acquire(timeout=0.05):
            if self._stop.is_set():
                return
        try:
            if self._stop.is_set():
                return
            self._touched |= {*step.links, *step.down, *step.blackhole}
            self._wan.change(dict(step.links))
            self._cut(step.down, step.blackhole)
        finally:
            self._lock.release()
        now_ns = time.monotonic_ns()
        record = {
            "due_s": step.t_s,
            "late_s": round((now_ns - self._began_ns) / 1e9 - step.t_s, 6),
            "applied_ns": now_ns,
            "links": [self._wan.states[i].describe() for i in sorted({*step.links, *step.down, *step.blackhole})],
        }
        self.count += 1
        if self._record:
            self.applied.append(record)
        self._events.write("link_changes", **record)

    def _cut(self, down: Mapping[int, bool], blackhole: Mapping[int, bool]) -> None:
        for index, cut in down.items():
            state = self._wan.states[index]
            if state.down != cut:  # the other direction of the same cable has done both
                self._wan.set_down(state.link.src_name, state.link.dst_name, cut)
        for index, cut in blackhole.items():
            state = self._wan.states[index]
            if state.blackhole != cut:
                self._wan.set_blackhole(state.link.src_name, state.link.dst_name, cut)

    def _fit(self) -> None:
        """Fit the sites' segments and buffers to every value to come, so that steps need not touch them."""
        coming = [link for step in self._ahead for link in step.links.values()]
        self._wan.require(coming)
        self._ahead = []
        self._network.fit(*envelope(self._wan.links, coming, self._network))


def envelope(
    links: Sequence[DirectedLink], coming: Sequence[DirectedLink], network: Network
) -> tuple[int, int]:
    """The segment size and the TCP buffer in bytes that suit the links now and with all values to come."""
    longest = list(links)
    for link in coming:
        known = longest[link.index]
        longest[link.index] = replace(
            known, rate=max(known.rate, link.rate), delay=max(known.delay, link.delay)
        )
    return shaping.gso_max_bytes([*links, *coming]), sysctls.tcp_buffer_bytes(longest, network.paths)
