"""What one site does about the network for one job.

It times what arrives, reports estimates, probes idle links, and chooses paths. The decisions are those of
`agents.awareness` and `agents.auxiliary`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, Protocol

from agents.auxiliary import choose_path
from agents.awareness import Estimator, IdleLinks, Sample, make_estimator
from agents.declared_network import DeclaredNetwork
from agents.job import JobDescription
from agents.link_state import NetworkNow
from agents.options import AuxiliaryOptions, AwarenessOptions
from agents.timers import Timer, Timers
from agents.wire import Header, Stamp, stamp_of
from topologies.paths import direct_path_number, is_intact
from topologies.validation import validated

PROBE: Final = "probe"
PROBE_FRAME: Final = bytes(32 * 1024)
# How often idle links are looked for, as a part of the time after which they are probed.
PROBE_LOOK: Final = 0.1

Way = tuple[int, int]
"""(the other site, the number of the path from the sender to the receiver)."""


class NetworkHost(Protocol):
    """What is needed of the agent."""

    @property
    def config(self) -> DeclaredNetwork: ...

    def send_probe(self, peer: int, path: int, header: Header, payload: bytes, owner: str) -> None: ...

    def tell_coordinator(self, kind: str, body: dict[str, Any]) -> int: ...

    def sent_bytes(self, peer: int, path: int) -> int: ...

    def queue_length(self, first_hop: int) -> int: ...


class SiteNetwork:
    """See the module's text. All methods run on the agent's loop.

    Args:
        job: the job.
        place: this site's place among the job's sites.
        host: the agent.
        timers: the clock of stamps and arrivals; the running loop's when left out.

    Attributes:
        chunks: sent, by (peer, path number, whether another path was their hop's own).
    """

    def __init__(
        self, job: JobDescription, place: int, host: NetworkHost, timers: Timers | None = None
    ) -> None:
        self._job = job
        self._site = job.members[place]
        self._host = host
        self._timers: Timers = timers or asyncio.get_running_loop()
        self._awareness = AwarenessOptions()
        self._auxiliary = AuxiliaryOptions()
        self._now = NetworkNow(host.config)
        self._allowed: dict[int, list[int]] | None = None
        self._random = random.Random()
        self._first_hops: dict[int, list[int]] = {}
        self._estimators: dict[Way, Estimator] = {}
        self._news: dict[Way, float] = {}
        self._looking: Timer | None = None
        self._report_due: Timer | None = None
        self._idle = IdleLinks((), 0.0, 0.0)
        self._direct: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self.chunks: defaultdict[tuple[int, int, bool], int] = defaultdict(int)
        self.auxiliary_received = 0
        self.report_bytes = 0
        self.reports = 0
        self.probe_bytes = 0
        self._probed_before = 0
        self.probes = 0

    @property
    def stamping(self) -> bool:
        """Whether frames carry the time at which they leave."""
        return self._awareness.on

    @property
    def estimates(self) -> dict[Way, float]:
        """bit/s from other sites to this one, as far as measured."""
        return {way: rate for way, estimator in self._estimators.items() if (rate := estimator.rate)}

    def configure(self, awareness: Any, auxiliary: Any, seed: int = 0) -> None:
        """A segment begins: its options, as plain values. Earlier measurements are forgotten.

        UsageError naming the option that is wrong.
        """
        self.close()
        self._awareness = validated(AwarenessOptions, awareness or {}, place=("awareness",))
        self._auxiliary = validated(AuxiliaryOptions, auxiliary or {}, place=("auxiliary",))
        self._allowed = {} if self._auxiliary.rule == "capacity" else None
        self._probed_before = self.probe_bytes
        self._random.seed(f"paths {seed} {self._site}")
        if self._awareness.estimator == "unbiased" and self._awareness.probe_idle_s:
            self._start_probing()

    def allow(self, detours: list[list[int]]) -> None:
        """The coordinator's word: the paths with something to spare, as (from, to, number) of all sites."""
        allowed: dict[int, list[int]] = {}
        for src, dst, number in detours:
            if src == self._site:
                allowed.setdefault(dst, []).append(number)
        if self._auxiliary.rule == "capacity":
            self._allowed = allowed

    def links_changed(self, down: Iterable[int]) -> None:
        """These links are down now, by index: paths over them are no choice, and what was measured over ways
        that have changed is forgotten.
        """
        changed = self._now.change(down)
        self._first_hops.clear()
        paths = self._host.config.paths
        for peer, number in tuple(self._estimators):
            way = paths[peer, self._site]
            if number >= len(way) or not is_intact(way[number], changed):
                self._estimators.pop((peer, number))
                self._news.pop((peer, number), None)

    def close(self) -> None:
        """Stop timers, forget estimates; counters stay."""
        for timer in (self._looking, self._report_due):
            if timer is not None:
                timer.cancel()
        self._looking = self._report_due = None
        self._estimators.clear()
        self._news.clear()

    # ---- paths

    def choose(self, peer: int, own: int) -> int:
        """The path that the next chunk for a peer takes; `own` is its hop's."""
        chosen = own
        if self._auxiliary.on:
            allowed = None if self._allowed is None else self._allowed.get(peer, ())
            if self._now.down:
                whole = [k for k in range(len(self._hops(peer))) if self._now.intact(self._site, peer, k)]
                allowed = whole if allowed is None else [k for k in allowed if k in whole]
            hops, draw = self._hops(peer), self._random.randrange
            chosen = choose_path(self._auxiliary, own, hops, self._host.queue_length, allowed, draw)
        self.chunks[peer, chosen, chosen != own] += 1
        return chosen

    def _hops(self, peer: int) -> list[int]:
        if peer not in self._first_hops:
            hops = self._now.first_hops_to(self._site, peer)
            self._first_hops[peer] = hops
        return self._first_hops[peer]

    # ---- measuring

    def observe(self, peer: int, path: int, header: Header, nbytes: int) -> None:
        """A frame with a chunk or a probe has arrived."""
        self.auxiliary_received += bool(header.get("auxiliary"))
        stamp = stamp_of(header)
        if stamp is not None:
            self.measure(peer, path, stamp, nbytes)

    def measure(self, peer: int, path: int, stamp: Stamp, nbytes: int) -> None:
        """Something with a stamp has arrived just now."""
        if not self._awareness.on:
            return
        estimator = self._estimators.get((peer, path))
        if estimator is None:
            config = self._host.config
            way = self._now.path(peer, self._site, path) or config.path(peer, self._site, path)
            delay_s = config.path_delay_s(way)
            estimator = self._estimators[peer, path] = make_estimator(self._awareness, delay_s)
        left, done = stamp.left_ns / 1e9, self._timers.time()
        rate = estimator.observe(Sample(nbytes, left, done, stamp.follows))
        if rate is None:
            return
        self._news[peer, path] = rate
        if self._report_due is None:
            # The first at once, what follows together: so reports are bounded whatever arrives.
            self._report_due = self._timers.call_soon(self._report)

    def _report(self) -> None:
        self._report_due = None
        if not self._news:
            return
        ways = [[peer, path, rate] for (peer, path), rate in self._news.items()]
        self._news.clear()
        body = {"job": self._job.wire, "ways": ways, "probe_bytes": self.probe_bytes - self._probed_before}
        self.report_bytes += self._host.tell_coordinator("estimates", body)
        self.reports += 1
        self._report_due = self._timers.call_later(self._awareness.report_every_s, self._report)

    # ---- probing

    def _start_probing(self) -> None:
        paths = self._host.config.paths
        self._direct = {
            peer: number
            for peer in self._job.members
            if peer != self._site and (number := direct_path_number(paths, self._site, peer)) is not None
        }
        self._sent = {peer: self._host.sent_bytes(peer, path) for peer, path in self._direct.items()}
        self._idle = IdleLinks(tuple(self._direct), self._awareness.probe_idle_s, self._timers.time())
        self._look()

    def _look(self) -> None:
        now = self._timers.time()
        for peer, path in self._direct.items():
            if not self._now.intact(self._site, peer, path):
                self._idle.used(peer, now)
            sent = self._host.sent_bytes(peer, path)
            if sent != self._sent[peer]:
                self._sent[peer] = sent
                self._idle.used(peer, now)
        due = self._idle.due(now)
        if due is not None:
            self._probe(due, self._direct[due])
        self._looking = self._timers.call_later(PROBE_LOOK * self._awareness.probe_idle_s, self._look)

    def _probe(self, peer: int, path: int) -> None:
        left = self._awareness.probe_bytes
        while left > 0:
            payload = PROBE_FRAME[:left]
            self._host.send_probe(peer, path, {"kind": PROBE, "job": self._job.wire}, payload, self._job.wire)
            left -= len(payload)
        self.probe_bytes += self._awareness.probe_bytes
        self.probes += 1
