"""How long an all-reduce takes under a policy, in a model of the links that is simple enough to reason about.

A link sends one chunk at a time at its full rate and is not interrupted; a chunk is forwarded when all of it
is there; a hop between sites that are no neighbours waits in one queue per link on its way. Every site has
its contribution ready at time 0; adding takes no time. What waits for a link leaves in the order of the
policy, and contributions keep to its run-ahead window. Nothing of the sites' machines is used: this is a
second, separate account of the protocol's schedule, to choose plans by and to check simulations against.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from agents.chunks import Chunk
from agents.planning.base import NetworkView
from agents.sync.policy import Policy
from agents.sync.spec import CollectiveSpec, item_size

Arc = tuple[int, int]


@dataclass(frozen=True)
class Forecast:
    """seconds: until the last site has the last result; busy: seconds of sending of every link in use;
    order: (chunk, direction) as they left, per link.
    """

    seconds: float
    busy: dict[Arc, float]
    order: dict[Arc, list[tuple[int, str]]]


def forecast(
    policy: Policy, spec: CollectiveSpec, network: NetworkView, *, occupancy_s: float = 0.0
) -> Forecast:
    """Follow every chunk of an all-reduce over the links of `network`, its rates and delays.

    occupancy_s  seconds that a message takes on a link besides its bits (a delay takes no link time)
    """
    return _Model(policy, spec, network, occupancy_s).run()


class _Model:
    def __init__(
        self, policy: Policy, spec: CollectiveSpec, network: NetworkView, occupancy_s: float
    ) -> None:
        self.network = network
        self.occupancy_s = occupancy_s
        self.itembits = 8 * item_size(spec.dtype)
        self.chunks = policy.chunk_table(spec)
        self.relations = policy.relations
        self.key = policy.link_key(0, spec)
        self.window = policy.window(spec)
        n = network.n
        self.missing = [
            [len(self.relations[chunk.tree].push_children[v]) for v in range(n)] for chunk in self.chunks
        ]
        self.results = [0] * n
        self.next_leaf = [0] * n  # per site, where its contributions have been offered up to
        self.waiting: dict[Arc, list[tuple[tuple[float, int], int, float, str, int, Callable[[], None]]]] = {}
        self.sending: set[Arc] = set()
        self.woken: set[Arc] = set()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.now = self.last = 0.0
        self.busy: dict[Arc, float] = {}
        self.order: dict[Arc, list[tuple[int, str]]] = {}

    def run(self) -> Forecast:
        for chunk in self.chunks:
            for site, awaited in enumerate(self.missing[chunk.index]):
                if not awaited and self.relations[chunk.tree].push_parents[site] is None:
                    self._have_result(chunk, site)  # a single site
        for site in range(self.network.n):
            self._offer_leaves(site)
        while True:
            for arc in sorted(self.woken):
                self._serve(arc)
            self.woken.clear()
            if not self.events:
                return Forecast(self.last, self.busy, self.order)
            # All of an instant before any link chooses: what arrives with the choice takes part in it.
            self.now = self.events[0][0]
            while self.events and self.events[0][0] <= self.now + 1e-12:
                heapq.heappop(self.events)[2]()

    def _offer_leaves(self, site: int) -> None:
        limit = len(self.chunks)
        if self.window is not None:
            limit = min(limit, self.results[site] + self.window)
        while self.next_leaf[site] < limit:
            chunk = self.chunks[self.next_leaf[site]]
            self.next_leaf[site] += 1
            parent = self.relations[chunk.tree].push_parents[site]
            if parent is not None and not self.relations[chunk.tree].push_children[site]:
                self._send(chunk, "up", site, parent)

    def _send(self, chunk: Chunk, direction: str, src: int, dst: int) -> None:
        key = self.key(chunk, direction, src, dst)
        bits = float(chunk.size * self.itembits)
        hops = list(pairwise(self.network.hop(src, dst)))

        def leg(k: int) -> None:
            if k == len(hops):
                self._arrived(chunk, direction, dst)
                return
            queue = self.waiting.setdefault(hops[k], [])
            heapq.heappush(queue, (key, next(self.numbers), bits, direction, chunk.index, lambda: leg(k + 1)))
            self.woken.add(hops[k])

        leg(0)

    def _serve(self, arc: Arc) -> None:
        queue = self.waiting[arc]
        if arc in self.sending or not queue:
            return
        self.sending.add(arc)
        _, _, bits, direction, chunk, then = heapq.heappop(queue)
        seconds = bits * self.network.cost(arc) / 1e6 + self.occupancy_s
        self.busy[arc] = self.busy.get(arc, 0.0) + seconds
        self.order.setdefault(arc, []).append((chunk, direction))

        def left() -> None:
            self.sending.discard(arc)
            self.woken.add(arc)

        self._at(self.now + seconds, left)
        self._at(self.now + seconds + self.network.delays.get(arc, 0.0), then)

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), action))

    def _arrived(self, chunk: Chunk, direction: str, site: int) -> None:
        if direction == "down":
            self._have_result(chunk, site)
            return
        self.missing[chunk.index][site] -= 1
        if self.missing[chunk.index][site]:
            return
        parent = self.relations[chunk.tree].push_parents[site]
        if parent is None:
            self._have_result(chunk, site)
        else:
            self._send(chunk, "up", site, parent)

    def _have_result(self, chunk: Chunk, site: int) -> None:
        self.last = self.now
        self.results[site] += 1
        for child in self.relations[chunk.tree].pull_children[site]:
            self._send(chunk, "down", site, child)
        if self.window is not None:
            self._offer_leaves(site)
