"""Coflows under one ordering on a fluid network: no packets, no delays, rates change at once.

The ordering is asked at every arrival and end of a coflow, and when its ranking says so; the engine gives
rates that respect the ranking.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from agents.coflow.base import Allocation, Coflow, CoflowError, Loads, Ordering, Ranking, Stage, View, largest
from agents.coflow.fabric import Fabric
from testbed.coflow.demand import Demand
from testbed.coflow.fair_switch import FairSwitch
from testbed.coflow.flow_engine import FlowEngine
from testbed.coflow.greedy_switch import GreedySwitch, instant
from testbed.coflow.madd import BACKFILLS, Backfill

# Of MADD, seconds. A stated choice: results depend on it strongly.
MADD_REFRESH_S = 0.125
# Steps of the simulation from one look of a watcher to the next: some milliseconds up to a second.
WATCH_STEPS = 16


Watch = Callable[["Simulation"], None]


class Engine(Protocol):
    """Keeps what every flow has left, and gives rates."""

    def add(self, number: int, demand: Demand) -> None: ...
    def rank(self, ranking: Ranking) -> None: ...
    def next(self) -> float:
        """When it next has something to do, were nothing to happen before."""
        ...

    def advance(self, now: float) -> list[int]:
        """Move to a time not after `next()`; the coflows that ended there."""
        ...

    def loads(self, number: int) -> dict[int, float]: ...
    def sent(self, number: int) -> float: ...
    def rate(self, number: int) -> float: ...
    def waited(self, number: int) -> float:
        """Seconds in which a coflow that has just ended sent nothing."""
        ...


class Workload(Protocol):
    """What brings coflows, and learns of their ends."""

    def start(self, simulation: Simulation) -> None: ...
    def finished(self, simulation: Simulation, number: int) -> None: ...
    def stages(self, simulation: Simulation) -> tuple[Stage, ...]: ...


@dataclass(frozen=True)
class Done:
    """A coflow that has ended. Times in seconds.

    isolation  what it needs alone
    waited     in which it sent nothing at all
    """

    number: int
    arrival: float
    finish: float
    isolation: float
    job: int | None
    waited: float = 0.0

    @property
    def cct(self) -> float:
        return self.finish - self.arrival


@dataclass(frozen=True)
class _Active:
    arrival: float
    size: float
    isolation: float
    job: int | None


def make_engine(
    fabric: Fabric,
    ordering: Ordering,
    allocation: Allocation,
    refresh_s: float,
    backfill: Backfill = "ranked",
) -> Engine:
    """The fastest engine that does it."""
    if allocation == "greedy" and fabric.uniform and refresh_s == 0 and ordering.name != "fifo_lm":
        return GreedySwitch(fabric)
    if allocation == "fair" and ordering.name == "fair" and fabric.routes is None and refresh_s == 0:
        return FairSwitch(fabric)
    return FlowEngine(fabric, allocation, refresh_s, backfill)


class Simulation:
    """One run.

    allocation  how rates follow the ranking; None = as the ordering has it
    refresh_s   seconds between renewals of rates besides arrivals and ends of coflows; 0 = at every end of a
                flow, infinity = no other; None = 0, but 0.125 for MADD
    backfill    what becomes of what MADD leaves; see `testbed.coflow.madd`
    watch       is called again and again while it runs, so that somebody can tell how far it is
    """

    def __init__(
        self,
        fabric: Fabric,
        ordering: Ordering,
        workload: Workload,
        allocation: Allocation | None = None,
        refresh_s: float | None = None,
        backfill: Backfill = "ranked",
        watch: Watch | None = None,
    ) -> None:
        self.fabric = fabric
        self._watch = watch
        self.ordering = ordering
        self.workload = workload
        self.allocation: Allocation = allocation or ordering.allocation
        if refresh_s is None:
            refresh_s = MADD_REFRESH_S if self.allocation == "madd" else 0.0
        if not refresh_s >= 0:
            raise CoflowError(f"a refresh every {refresh_s} s", hint="at least 0")
        if self.allocation == "madd" and refresh_s == 0:
            raise CoflowError("MADD at every end of a flow never settles", hint="give a refresh above 0")
        if backfill not in BACKFILLS:
            raise CoflowError(f"a backfill {backfill!r}", hint=", ".join(BACKFILLS))
        self.refresh_s = refresh_s
        self.now = 0.0
        self.done: dict[int, Done] = {}
        # Seconds of each link's time that all coflows so far need.
        self.carried: dict[int, float] = {}
        self._engine = make_engine(fabric, ordering, self.allocation, refresh_s, backfill)
        self._active: dict[int, _Active] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._coflow_count = 0
        self._ranking = Ranking(())
        self._stale = False

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Do something at a time."""
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, call))

    def submit(self, demand: Demand, job: int | None = None) -> int:
        """A new coflow, now; its number."""
        number = self._coflow_count
        self._coflow_count += 1
        loads = demand.loads(self.fabric)
        for link, seconds in loads.items():
            self.carried[link] = self.carried.get(link, 0.0) + seconds
        isolation = largest(loads)
        self._active[number] = _Active(self.now, demand.bytes, isolation, job)
        self._engine.add(number, demand)
        self._stale = True
        return number

    def loads(self, number: int) -> Loads:
        """Seconds that a coflow under way has left on each link."""
        return self._engine.loads(number)

    def utilisation(self) -> dict[int, float]:
        """Of each link that carried anything: the part of the time so far in which it was busy."""
        return {link: seconds / self.now for link, seconds in sorted(self.carried.items())} if self.now else {}

    def run(self) -> None:
        """Until nothing is left to do."""
        self.workload.start(self)
        if self._stale:
            self._rank()
        for step in itertools.count():
            if not self._active and not self._timers:
                return
            if self._watch is not None and step % WATCH_STEPS == 0:
                self._watch(self)
            moment = self._moment()
            if moment == inf:
                raise CoflowError(f"{len(self._active)} coflows are stuck at {self.now} s")
            self.now = moment
            for number in self._engine.advance(moment):
                active = self._active.pop(number)
                self.done[number] = Done(
                    number,
                    active.arrival,
                    moment,
                    active.isolation,
                    active.job,
                    self._engine.waited(number),
                )
                self._stale = True
                self.workload.finished(self, number)
            while self._timers and self._timers[0][0] <= instant(moment):
                heapq.heappop(self._timers)[2]()
            if self._stale or self._ranking_is_over():
                self._rank()

    def _moment(self) -> float:
        moment = max(self.now, self._engine.next())
        if self._timers:
            moment = min(moment, max(self.now, self._timers[0][0]))
        if self._active and self._ranking.until is not None:
            moment = min(moment, max(self.now, self._ranking.until))
        for number, amount in self._ranking.watch.items():
            rate = self._engine.rate(number) if number in self._active else 0.0
            if rate > 0:
                # Never less than an instant: rounding must not hold the clock.
                wait = max(amount - self._engine.sent(number), 0.0) / rate
                moment = min(moment, max(self.now + wait, instant(self.now)))
        return moment

    def _ranking_is_over(self) -> bool:
        until = self._ranking.until
        if self._active and until is not None and instant(self.now) >= until:
            return True
        return any(
            number in self._active and self._engine.sent(number) * (1 + 1e-9) >= amount
            for number, amount in self._ranking.watch.items()
        )

    def _rank(self) -> None:
        self._stale = False
        reads = self.ordering.reads_loads
        coflows = tuple(
            Coflow(
                number,
                self._engine.loads(number) if reads else {},
                active.arrival,
                active.size,
                self._engine.sent(number) if self.ordering.name == "fifo_lm" else 0.0,
                active.isolation,
                job=active.job,
            )
            for number, active in self._active.items()
        )
        self._ranking = self.ordering.order(View(self.now, coflows, self.workload.stages(self)))
        self._engine.rank(self._ranking)
