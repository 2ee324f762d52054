"""Keeps the plan of all switches in line with the links that are whole, one ordered transition at a time.

Pure; times are seconds of one monotonic clock, handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from controller.reroute import LinkWatch, Step, transition
from controller.rules import PathSets, plan_rules
from controller.session import Command, Session
from topologies.model import Topology
from topologies.paths import primaries

HOLD_S = 3.0
"""How long after the first switch came the others are waited for, before any of them is given rules."""
STEP_S = 1.0
"""A switch that has not confirmed a step by then is not waited for any longer."""
DRAIN_S = 2.0
"""Packets on the old way have arrived after this; only then are the rules deleted that only they need."""

Orders = list[tuple[int, list[Command]]]
"""Commands for switches, by datapath id."""


@dataclass(frozen=True, slots=True)
class Reroute:
    """A transition that is done: how many pairs got another primary, and how long it took.

    The time counts from the first port that was seen in its new state to the last confirmed step.
    """

    links_down: tuple[int, ...]
    pairs: int
    seconds_s: float


class Steering:
    """Which links are down, which primaries stand in for others, and the steps from plan to plan.

    After a start nothing is given to any switch until all have told about their ports (or HOLD_S have
    passed): a controller that comes back while links are down finds the rules right as they are.

    Args:
        topology, path_sets: as declared.
        sessions: of every switch, by datapath id.
    """

    def __init__(self, topology: Topology, path_sets: PathSets, sessions: Mapping[int, Session]) -> None:
        self.watch = LinkWatch(topology)
        self.down: frozenset[int] = frozenset()
        """The links (by index) that the present primaries avoid."""
        self.declared = primaries(topology, path_sets)
        self.leading = self.declared
        """The present primaries, None for two sites that are parted."""
        self.version = 0
        """Grows with every change of the primaries."""
        self.reroutes = 0
        """How many times the primary of a pair has changed."""
        self.last: Reroute | None = None
        self._topology, self._path_sets, self._sessions = topology, path_sets, sessions
        self._unknown = set(sessions)
        """Switches that have not told about their ports since the start."""
        self._release_at_s: float | None = None
        self._released = False
        self._steps: deque[Step] = deque()
        self._waiting: set[int] = set()
        self._slow: set[int] = set()
        """Switches that have been waited for in vain; not again until they have confirmed."""
        self._patience_until_s = 0.0
        self._touched: set[int] = set()
        self._rest: Step = {}
        self._rest_at_s = 0.0
        self._changed_s: float | None = None
        self._began_s = 0.0
        self._moved = 0
        self._moving = False

    @property
    def holding(self) -> bool:
        """Whether switches that come are to wait for others."""
        return not self._released

    @property
    def moving(self) -> bool:
        """Whether a transition is under way."""
        return self._moving

    @property
    def pending(self) -> bool:
        """Whether `on_time` has anything to look after."""
        hold = self.holding and self._release_at_s is not None
        return hold or self._moving or bool(self._touched or self._rest) or self.watch.pending

    @property
    def moved(self) -> list[tuple[int, int]]:
        """The pairs whose primary is not the declared one."""
        return [pair for pair, path in self.leading.items() if path != self.declared[pair]]

    def on_connect(self, now_s: float) -> None:
        if self._release_at_s is None:
            self._release_at_s = now_s + HOLD_S

    def on_ports(self, number: int, ports: Mapping[int, bool], now_s: float) -> None:
        """A switch tells about all of its ports."""
        self.watch.report_all(number, ports, now_s)
        self._unknown.discard(number)

    def on_time(self, now_s: float) -> Orders:
        """What is to be done by now; to be called often while `pending`, and after every answer."""
        if self.holding:
            if self._release_at_s is None or (self._unknown and now_s < self._release_at_s):
                return []
            return self._release(now_s)
        since_s = self.watch.settle(now_s)
        if since_s is not None and self._changed_s is None:
            self._changed_s = since_s
        orders: Orders = []
        while True:
            self._waiting = {number for number in self._waiting if self._sessions[number].updating}
            if self._waiting and now_s < self._patience_until_s:
                return orders
            self._slow |= self._waiting
            for number in self._waiting:
                self._sessions[number].on_error(f"did not confirm new routes within {STEP_S:g} s")
            self._waiting = set()
            if self._steps:
                self._take(self._steps.popleft(), now_s, orders)
            elif self._moving:
                self._moving = False
                self.last = Reroute(tuple(sorted(self.down)), self._moved, now_s - self._began_s)
                self._rest_at_s = now_s + DRAIN_S
            elif self.watch.down != self.down:
                self._begin(now_s)
            elif self._touched:
                orders += [(number, self._sessions[number].verify(now_s)) for number in sorted(self._touched)]
                self._touched = set()
            elif self._rest and now_s >= self._rest_at_s:
                self._take(self._rest, now_s, orders)
                self._rest = {}
            else:
                return orders

    def _release(self, now_s: float) -> Orders:
        self._released = True
        self.watch.settle(now_s, at_once=True)
        self.down = self.watch.down
        self.leading = primaries(self._topology, self._path_sets, self.down)
        plan = plan_rules(self._topology, self._path_sets, self.down)
        return [(number, session.release(plan[number], now_s)) for number, session in self._sessions.items()]

    def _begin(self, now_s: float) -> None:
        self._began_s, self._changed_s = self._changed_s or now_s, None
        self.down = self.watch.down
        before, self.leading = self.leading, primaries(self._topology, self._path_sets, self.down)
        self._moved = sum(before[pair] != path for pair, path in self.leading.items())
        self.reroutes += self._moved
        self.version += 1
        plan = plan_rules(self._topology, self._path_sets, self.down)
        held = {number: session.wanted for number, session in self._sessions.items()}
        change = transition(held, plan, self._path_sets, self.leading)
        self._steps = deque(change.steps)
        # What an earlier transition left is still held, so it is part of this one.
        self._rest = change.rest
        self._moving = True

    def _take(self, step: Step, now_s: float, orders: Orders) -> None:
        self._slow = {number for number in self._slow if self._sessions[number].updating}
        for number, change in step.items():
            orders.append((number, self._sessions[number].update(change.add, change.delete)))
        self._waiting = set(step) - self._slow
        self._touched |= set(step)
        self._patience_until_s = now_s + STEP_S
