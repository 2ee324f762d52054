"""The connections between sites in the simulated world: one a lane (sender, peer, path, class), as the agents'.

A lane follows its path link by link. While links are cut it follows the switches' rules (`rerouting`), and
stalls and tries again as TCP does (`retransmission`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import ETIMEDOUT
from itertools import pairwise

from testbed.simulation.clock import VirtualClock
from testbed.simulation.fluid import Connection, Delivered, FluidNetwork, Message, Order
from testbed.simulation.rerouting import Rerouting
from testbed.simulation.retransmission import Retransmission
from testbed.simulation.underlay import Underlay
from topologies.addressing import AGENT_DATA_PORT, wan_ip
from topologies.model import Topology
from topologies.paths import Path

Lost = Callable[[int, int, str], None]
"""Told of a connection that was given up: sender, receiver, why."""


@dataclass(eq=False)
class Lane:
    """One connection; it is `open` once its handshake could be done."""

    src: int
    dst: int
    path: int
    connection: Connection
    open: bool = True
    stall: Retransmission | None = None
    round: int = 0  # tells one stall's timers from those of another


class Lanes:
    """All lanes of one job.

    lost      told of a lane that is given up
    rerouting where the switches send packets while links are cut; None while none has ever been
    """

    def __init__(
        self, topology: Topology, underlay: Underlay, network: FluidNetwork, clock: VirtualClock, lost: Lost
    ) -> None:
        self.rerouting: Rerouting | None = None
        self._topology = topology
        self._underlay = underlay
        self._network = network
        self._clock = clock
        self._lost = lost
        self._link_of = {(link.src, link.dst): link.index for link in topology.directed}
        self._delay_of = {(link.src, link.dst): link.delay.ns for link in topology.directed}
        self._lanes: dict[tuple[int, int, int, int], Lane] = {}
        self._from: list[list[Lane]] = [[] for _ in topology.site_names]
        self._first_hops: dict[int, Mapping[tuple[int, int], int]] = {}

    def lane(self, src: int, dst: int, path: int, cls: int = 0) -> Lane:
        """The lane from a site to a peer over one of the paths; an absent one is the primary."""
        key = (src, dst, path, cls)
        lane = self._lanes.get(key)
        if lane is None:
            connection = self._network.connect(self._route(self._underlay.path(src, dst, path)), cls)
            lane = self._lanes[key] = Lane(src, dst, path, connection)
            self._from[src].append(lane)
            if self.rerouting is not None:
                self._look_at(lane, self.rerouting)
                lane.open = not connection.stalled
        return lane

    def send(self, lane: Lane, nbytes: int, delivered: Delivered, order: Order = ()) -> Message:
        """Queue a message; see `FluidNetwork.send`."""
        message = self._network.send(lane.connection, nbytes, delivered, order)
        if lane.connection.stalled and lane.stall is None:
            self._start_timers(lane)
        return message

    def lead(self, src: int, first_hops: Mapping[tuple[int, int], int]) -> None:
        """Where paths, by (destination, number), leave a site from now on, as that site has been told."""
        self._first_hops[src] = first_hops

    def waiting(self, src: int, first_hop: int) -> int:
        """Messages that wait at a site on all lanes whose path begins at that neighbour."""
        return sum(lane.connection.waiting for lane in self._from[src] if self._first_hop(lane) == first_hop)

    def _first_hop(self, lane: Lane) -> int:
        told = self._first_hops.get(lane.src)
        if told is None:
            return self._underlay.path(lane.src, lane.dst, lane.path)[1]
        # The network sends an absent path along the primary, so its queue counts there.
        return told.get((lane.dst, lane.path), told[lane.dst, 0])

    def sent_bytes(self, src: int, dst: int, path: int) -> int:
        """What has left a site for a peer over a path."""
        lanes = (lane for lane in self._from[src] if (lane.dst, lane.path) == (dst, path))
        return round(sum(lane.connection.sent_bits for lane in lanes) / 8)

    # ---- links that are cut

    def look(self) -> None:
        """Links were cut or mended, or the switches have new rules."""
        if self.rerouting is not None:
            for lane in list(self._lanes.values()):
                self._look_at(lane, self.rerouting)

    def _look_at(self, lane: Lane, rerouting: Rerouting) -> None:
        connection = lane.connection
        path = rerouting.path(lane.src, lane.dst, lane.path)
        if not self._carries(lane, rerouting):
            if not connection.stalled:
                self._network.stall(connection)
                if connection.outstanding:
                    self._start_timers(lane)
            return
        assert path is not None, "it carries"
        if not connection.stalled:
            self._network.reroute(connection, self._route(path))
        elif lane.stall is None:
            self._resume(lane)
        else:
            self._at(lane, lane.stall.next_ns(self._clock.now_ns), self._try_again)

    def _carries(self, lane: Lane, rerouting: Rerouting) -> bool:
        """Whether packets arrive, and the receiver's acknowledgements, which take its primary path."""
        there = rerouting.path(lane.src, lane.dst, lane.path)
        back = rerouting.path(lane.dst, lane.src, 0)
        return rerouting.carries(there) and rerouting.carries(back)

    def _start_timers(self, lane: Lane) -> None:
        there = self._underlay.path(lane.src, lane.dst, lane.path)
        back = self._underlay.path(lane.dst, lane.src, 0)
        rtt_ns = sum(self._delay_of[hop] for path in (there, back) for hop in pairwise(path))
        lane.stall = Retransmission(self._clock.now_ns, rtt_ns, connecting=not lane.open)
        self._at(lane, lane.stall.gives_up_ns, self._give_up)

    def _at(self, lane: Lane, time_ns: int, act: Callable[[Lane], None]) -> None:
        round_ = lane.round

        def due() -> None:
            if lane.round == round_ and lane.connection.stalled:
                act(lane)

        self._clock.at(time_ns, due)

    def _try_again(self, lane: Lane) -> None:
        assert self.rerouting is not None
        if self._carries(lane, self.rerouting):
            self._resume(lane)

    def _resume(self, lane: Lane) -> None:
        assert self.rerouting is not None
        path = self.rerouting.path(lane.src, lane.dst, lane.path)
        assert path is not None, "it carries"
        lane.stall, lane.open = None, True
        lane.round += 1
        self._network.reroute(lane.connection, self._route(path))
        self._network.resume(lane.connection)

    def _give_up(self, lane: Lane) -> None:
        assert lane.stall is not None
        reason = os.strerror(ETIMEDOUT).lower()
        if lane.stall.connecting:
            seconds = (lane.stall.gives_up_ns - lane.stall.since_ns) / 1e9
            reason = f"no connection to {wan_ip(lane.dst)}:{AGENT_DATA_PORT} within {seconds:g} s: timed out"
        lane.stall, lane.open = None, False
        lane.round += 1
        self._network.reset(lane.connection)
        self._lost(lane.src, lane.dst, reason)

    def _route(self, path: Path) -> list[int]:
        return [self._link_of[hop] for hop in pairwise(path)]
