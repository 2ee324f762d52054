"""`tsengine`: who sends to whom is decided per transfer, by what earlier transfers have shown.

Source: Zhou et al., "TSEngine: Enable Efficient Communication Overlay in Distributed Machine Learning in
WANs", IEEE TNSM 2021 (doi 10.1109/TNSM.2021.3106315), as its public code decides
(github.com/zhouhuaman/TSEngine: van.cc ProcessAskCommand, ProcessAsk1Command). One server keeps the model;
there is no tree and no probe.

Aggregation. Sites whose partial sum is ready wait in a queue, the server's turn among them. When two wait,
the two oldest are paired, a before b: with the server in the pair the other sends to it; else a sends to b
if the link a -> b is known to be faster than b -> a, and b sends to a otherwise. The receiver adds and waits
again. Only the direction looks at the network. A site takes in one sum of a chunk at a time, which spares
the server the incast of a star; simultaneous starts end after about log2 of the sites.

Distribution. Whoever holds the result asks for a receiver, sends, and asks again, so holders double.
Candidates are the sites not yet served. With probability min(known / (known + unknown), max_greed) the one
with the fastest known link from the asker is taken (the lowest index on ties), else a random one of the
unknown links: so links get known by use. A sample is bytes / seconds of a delivery, the last one counts, and
it is forgotten after `expiry` rounds. Samples come from the distribution alone.

`compat: clean` (the default) is the idea. `compat: release-1.0` keeps the released arithmetic, for
comparison: the probability's integer division (0 unless every candidate is known) and its draw of one of
ten, so 10 % greedy while anything is unknown; throughput as a whole number of transfers a second, so
anything slower than a second is 0 and all such links tie; expiry after 5 broadcasts of single chunks instead
of rounds. Its draws depend on the second of the wall clock, which is not imitated, and where it would divide
by zero (all known, random drawn) the run stops.

Unlike the released code, which must finish one key before the next, keys do not share their queues here.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents.planning.base import NetworkView, Plan, PlanError, Tree
from agents.planning.options import number, whole_number, word
from agents.planning.transfers import Event, Holds, Key, Measured, Ready, Returned, Transfer, Transfers
from topologies.errors import UsageError
from topologies.model import nearest

COMPAT = ("clean", "release-1.0")
RELEASE_EXPIRY = 5


@dataclass(frozen=True)
class TsEngine:
    """server     site index; max_greed: cap on the probability of the best known link
    expiry     rounds after which a sample is forgotten (None = twice the number of sites)
    lease_s    the least time that a transfer may take
    """

    server: int = 0
    max_greed: float = 0.9
    expiry: int | None = None
    seed: int = 0
    compat: str = "clean"
    lease_s: float = 30.0

    @classmethod
    def from_options(cls, options: Mapping[str, Any], site_names: Sequence[str]) -> TsEngine:
        """From `server: SITE`, `max_greed` 0..1, `expiry`, `seed`, `compat`, `lease_s`."""
        server = options.get("server", site_names[0])
        if server not in site_names:
            raise UsageError(
                f"scheduler tsengine has no server {server!r}", hint=nearest(str(server), site_names)
            )
        expiry = options.get("expiry")
        return cls(
            list(site_names).index(server),
            number("tsengine", "max_greed", options.get("max_greed", cls.max_greed), least=0, most=1),
            None if expiry is None else whole_number("tsengine", "expiry", expiry, least=0),
            whole_number("tsengine", "seed", options.get("seed", 0), least=0),
            word("tsengine", "compat", options.get("compat", cls.compat), COMPAT),
            number("tsengine", "lease_s", options.get("lease_s", cls.lease_s), least=0.001),
        )

    @property
    def name(self) -> str:
        return "tsengine" if self.compat == "clean" else f"tsengine-{self.compat}"

    def plan(self, network: NetworkView) -> Plan:
        """No trees: the rule, and the star to the server for what is no all-reduce of floating type."""
        assert network.fastest, "raises where a site cannot be reached"
        star = tuple(None if site == self.server else self.server for site in range(network.n))
        return Plan(self.name, (Tree(self.server, 1.0, 0.0, star),), transfers=Transfers(self.server, self))

    def decider(self, n_sites: int) -> TsEngineDecider:
        """Fresh state: nothing known, nobody waiting."""
        return TsEngineDecider(self, n_sites)


def greed_probability(known: int, unknown: int, most: float, compat: str = "clean") -> float:
    """The probability that the best known link is taken."""
    if not known:
        return 0.0
    if compat == "clean":
        return min(known / (known + unknown), most)
    rate = min(float(known // (known + unknown)), most)
    return (int(10 * rate + 1e-9) + 1) / 10 if rate < 1 else 1.0


def throughput(nbytes: int, seconds: float, compat: str = "clean") -> float:
    """A sample: bytes per second, or as released the whole number of such transfers a second."""
    if compat == "clean":
        return nbytes / seconds if seconds > 0 else float("inf")
    return float(int(1 / seconds)) if seconds > 0 else float("inf")


@dataclass
class _KeyState:
    queue: deque[int] = field(default_factory=deque)
    unserved: set[int] = field(default_factory=set)
    generation: int = -1  # the number of its broadcast, once it has begun
    closed: bool = False


class TsEngineDecider:
    """The coordinator's state. `samples[i, j]` = (throughput, round or generation in which it was taken)."""

    def __init__(self, rule: TsEngine, n_sites: int) -> None:
        self.rule = rule
        self.n = n_sites
        self.samples: dict[tuple[int, int], tuple[float, int]] = {}
        # Broadcasts begun and finished, less one: the released code's counts of generations.
        self.begun = self.finished = -1
        self._clean = rule.compat == "clean"
        self._expiry = 2 * n_sites if rule.expiry is None else rule.expiry
        self._random = random.Random(rule.seed)
        self._keys: dict[Key, _KeyState] = {}

    def decide(self, event: Event) -> Transfer | None:
        """What the module's text says; None when nothing follows."""
        match event:
            case Ready(key, site):
                return self._pair(key, site)
            case Holds(key, site):
                return self._receiver(key, site)
            case Measured(key, src, dst, nbytes, seconds):
                taken = key[0] if self._clean else self._state(key).generation
                self.samples[src, dst] = (throughput(nbytes, seconds, self.rule.compat), taken)
            case Returned(key, site):
                self._state(key).unserved.add(site)
        return None

    def forget(self, round_number: int) -> None:
        """Drop the queues and candidates of a round; samples stay."""
        for key in [key for key in self._keys if key[0] == round_number]:
            del self._keys[key]

    def waiting(self, key: Key) -> tuple[int, ...]:
        """The queue of a key, the oldest first."""
        return tuple(self._state(key).queue)

    def _state(self, key: Key) -> _KeyState:
        state = self._keys.get(key)
        if state is None:
            state = self._keys[key] = _KeyState(unserved=set(range(self.n)) - {self.rule.server})
        return state

    def _rate(self, src: int, dst: int) -> float:
        return self.samples.get((src, dst), (-1.0, 0))[0]

    def _seen(self, src: int, dst: int) -> tuple[int, int, float | None]:
        sample = self.samples.get((src, dst))
        return src, dst, None if sample is None else sample[0]

    def _pair(self, key: Key, site: int) -> Transfer | None:
        queue = self._state(key).queue
        if site in queue:
            raise PlanError(f"site {site} waits for chunk {key} already")
        queue.append(site)
        if len(queue) < 2:
            return None
        a, b = queue.popleft(), queue.popleft()
        if self.rule.server in (a, b):
            sender = b if a == self.rule.server else a
            return Transfer(key, "up", sender, self.rule.server, "server")
        seen = (self._seen(a, b), self._seen(b, a))
        if self._rate(a, b) > self._rate(b, a):
            return Transfer(key, "up", a, b, "faster", seen=seen)
        return Transfer(key, "up", b, a, "later", seen=seen)

    def _receiver(self, key: Key, holder: int) -> Transfer | None:
        state = self._state(key)
        state.unserved.discard(holder)  # served in the end by a delivery that was given up
        if state.generation < 0:
            self.begun += 1
            state.generation = self.begun
        if not state.unserved:
            if not state.closed:
                state.closed = True
                self.finished += 1
            return None
        self._expire(key, holder)
        candidates = sorted(state.unserved)
        known = [site for site in candidates if (holder, site) in self.samples]
        unknown = [site for site in candidates if (holder, site) not in self.samples]
        greed = greed_probability(len(known), len(unknown), self.rule.max_greed, self.rule.compat)
        draw = self._random.random()
        if draw < greed:
            best = max(known, key=lambda site: (self._rate(holder, site), -site))
            choice, mode = best, "greedy"
        else:
            if not unknown and not self._clean:
                raise PlanError("TSEngine 1.0 divides by zero here: all links known, random drawn")
            # With every link known there is nothing to explore: any of them.
            choice, mode = self._random.choice(unknown or known), "random"
        state.unserved.discard(choice)
        seen = tuple(self._seen(holder, site) for site in candidates)
        return Transfer(key, "down", holder, choice, mode, draw, greed, seen)

    def _expire(self, key: Key, holder: int) -> None:
        now, window = (key[0], self._expiry) if self._clean else (self.finished, RELEASE_EXPIRY)
        for arc in [(i, j) for (i, j), (_, taken) in self.samples.items() if i == holder]:
            if now - self.samples[arc][1] > window:
                del self.samples[arc]
