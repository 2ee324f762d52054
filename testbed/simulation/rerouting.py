"""Links that are cut in the simulated world: what the switches do, by the controller's own rules.

A cut cable is seen by both switches; the controller takes it for cut after a moment, tells the coordinator, and
moves whatever would cross it to paths that are whole, one such move at a time. A blackhole is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from agents.declared_network import DeclaredNetwork
from controller.reroute import DOWN_AFTER_S, UP_AFTER_S, LinkWatch
from testbed.simulation.clock import SECOND, VirtualClock
from topologies.addressing import dpid, wan_port
from topologies.paths import Path, hops_of, is_intact, primaries

# Past the moment itself, so that no rounding of seconds makes it too early.
_JUST_AFTER_NS = 1000


class Rerouting:
    """Where packets go while links are cut.

    install_ns  from the controller's decision until the switches have the new rules
    moved       called when they have them
    decided     told the links (by index) that the controller takes for cut, whenever they are others
    """

    def __init__(
        self,
        network: DeclaredNetwork,
        clock: VirtualClock,
        install_ns: int,
        moved: Callable[[], None],
        decided: Callable[[frozenset[int]], None] = lambda down: None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._install_ns = install_ns
        self._moved = moved
        self._decided = decided
        self._down: frozenset[int] = frozenset()  # what the rules avoid, or are about to
        self._moving = False
        self._watch = LinkWatch(network.topology)
        self._cut: dict[str, set[int]] = {"down": set(), "blackhole": set()}
        self._avoided: frozenset[tuple[int, int]] = frozenset()
        self._leading: dict[tuple[int, int], Path | None] = {}
        self.broken: frozenset[tuple[int, int]] = frozenset()
        """The hops that carry nothing now."""
        self.reroutes = 0
        """How many times the switches' rules have changed."""

    @property
    def parted(self) -> list[tuple[int, int]]:
        """The pairs between which the switches know no way."""
        return [pair for pair, path in self._leading.items() if path is None]

    def path(self, src: int, dst: int, number: int) -> Path | None:
        """The sites that a packet passes by the switches' rules; None where it is dropped at its source."""
        path = self._network.path(src, dst, number)
        return path if is_intact(path, self._avoided) else self._leading[src, dst]

    def carries(self, path: Path | None) -> bool:
        """Whether what is sent that way arrives."""
        return path is not None and not any(hop in self.broken for hop in pairwise(path))

    def condition(self, direction: int) -> str:
        """`up`, `down` or `blackhole`, as the emulated network calls it."""
        if direction in self._cut["down"]:
            return "down"
        return "blackhole" if direction in self._cut["blackhole"] else "up"

    @property
    def settled(self) -> frozenset[int] | None:
        """The links that the switches' rules avoid, once these are no longer about to change."""
        return None if self._moving or self._watch.pending else self._down

    @property
    def cut(self) -> dict[str, frozenset[int]]:
        """The directions that are down or swallow everything."""
        return {kind: frozenset(directions) for kind, directions in self._cut.items()}

    def change(self, down: Mapping[int, bool], blackhole: Mapping[int, bool]) -> None:
        """Directions (by index) that are from now on so, or no more. The caller looks at its lanes after."""
        topology, now_s = self._network.topology, self._clock.now_ns / SECOND
        for kind, changes in (("down", down), ("blackhole", blackhole)):
            for index, on in changes.items():
                (self._cut[kind].add if on else self._cut[kind].discard)(index)
        for index, on in down.items():
            link = topology.directed[index]
            self._watch.report(dpid(link.src), wan_port(topology, link.src, link.dst), not on, now_s)
        directions = self._cut["down"] | self._cut["blackhole"]
        self.broken = frozenset((topology.directed[i].src, topology.directed[i].dst) for i in directions)
        if down and self._watch.pending:
            for wait_s in (DOWN_AFTER_S, UP_AFTER_S):
                self._clock.after(round(wait_s * SECOND) + _JUST_AFTER_NS, self._settle)

    def _settle(self) -> None:
        self._watch.settle(self._clock.now_ns / SECOND)
        self._begin()

    def _begin(self) -> None:
        """Move the traffic, unless another move is under way; then it is looked at again."""
        if self._moving or self._watch.down == self._down:
            return
        self._down, self._moving = self._watch.down, True
        self._clock.after(self._install_ns, self._install)
        self._decided(self._down)

    def _install(self) -> None:
        self._avoided = hops_of(self._network.topology, self._down)
        self._leading = primaries(self._network.topology, self._network.paths, self._down)
        self._moving = False
        self.reroutes += 1
        self._moved()
        self._begin()
