"""The gate of one link that a site's connections leave by: `agents.coflow.gate` on the loop's clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agents.coflow.gate import UplinkGate

if TYPE_CHECKING:
    from agents.lanes import Lane
    from agents.placement import Order


class Uplink:
    """Lanes ask it before they send; those that it holds are woken when their turn may have come.

    Create and use it on a running asyncio loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate: UplinkGate[Lane] = UplinkGate()
        self._held: set[Lane] = set()
        self._queued: dict[Lane, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.holds = 0

    def wants(self, lane: Lane, key: Order) -> None:
        before = self._gate.first
        self._gate.wants(lane, key, self._loop.time())
        # A lane whose key got worse may have been what others were held for.
        if before is lane and self._gate.first is not lane:
            self._wake()

    def admits(self, lane: Lane) -> bool:
        until = self._gate.held_until(lane, self._loop.time())
        if until is None:
            self._held.discard(lane)
            return True
        self._held.add(lane)
        self.holds += 1
        if self._timer is None:
            first = self._gate.first
            if first is not None:
                self._queued.setdefault(first, first.queued_bytes)
            self._timer = self._loop.call_at(until, self._look)
        return False

    def moved(self, lane: Lane) -> None:
        self._gate.moved(lane, self._loop.time())

    def idle(self, lane: Lane) -> None:
        self._queued.pop(lane, None)
        self._held.discard(lane)
        if self._gate.idle(lane):
            self._wake()

    def _look(self) -> None:
        """Those in front may have stood still. What the peer has acknowledged since is a movement too."""
        self._timer = None
        first = self._gate.first
        if first is not None:
            queued = first.queued_bytes
            if queued < self._queued.get(first, queued):
                self._gate.moved(first, self._loop.time())
            self._queued[first] = queued
        self._wake()

    def _wake(self) -> None:
        held, self._held = self._held, set()
        for lane in held:
            lane.resume()
