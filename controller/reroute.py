"""When links fail and return: which links are down, and in which order the switches change their rules.

Pure; times are seconds of one monotonic clock, handed in.

The order is what keeps packets from circling and, where the old way is still whole, from being lost. Rules
along a path are added from its end to its beginning, so a packet that meets a new rule finds the rest of the
new path behind it. Rules of a path that is cut are deleted from its beginning to its end, after the new ones
stand. What the new way does not need is deleted only when the packets on the old way have arrived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controller.rules import FlowRule, Kind, PathSets, RuleId, difference
from topologies.addressing import dpid, wan_port
from topologies.model import Topology
from topologies.paths import Path

DOWN_AFTER_S = 0.05
"""A link is taken for cut when a port of it has been down so long: both ends and other links come along."""
UP_AFTER_S = 0.5
"""A link is taken for whole again when its ports have been up so long: a flapping one stays out of use."""

Rules = Mapping[int, Sequence[FlowRule]]
"""Rules of every switch, by datapath id."""


class LinkWatch:
    """Which links are down, by what the switches say about their ports.

    A link is down while either of its ports is. What a switch that is gone said last stays true until it is
    back.
    """

    def __init__(self, topology: Topology) -> None:
        self.down: frozenset[int] = frozenset()
        self._link_at: dict[tuple[int, int], int] = {}
        for i, link in enumerate(topology.links):
            u, v = (topology.index(name) for name in link.endpoints)
            self._link_at[dpid(u), wan_port(topology, u, v)] = i
            self._link_at[dpid(v), wan_port(topology, v, u)] = i
        self._ports_down: set[tuple[int, int]] = set()
        self._since_s: dict[int, float] = {}

    def report(self, number: int, port: int, up: bool, now_s: float) -> None:
        """A switch tells about one of its ports; a port that is gone is a port that is down."""
        link = self._link_at.get((number, port))
        if link is None:
            return
        (self._ports_down.discard if up else self._ports_down.add)((number, port))
        if (link in self._seen()) == (link in self.down):
            self._since_s.pop(link, None)
        else:
            self._since_s.setdefault(link, now_s)

    def report_all(self, number: int, ports: Mapping[int, bool], now_s: float) -> None:
        """A switch tells about all of its ports."""
        for held, port in self._link_at:
            if held == number:
                self.report(number, port, ports.get(port, False), now_s)

    @property
    def pending(self) -> bool:
        """Whether a link is seen in another state than it is taken for."""
        return bool(self._since_s)

    def settle(self, now_s: float, *, at_once: bool = False) -> float | None:
        """Take over what has been seen for long enough; since when the first is so, None without any."""
        settled = {
            link: since_s
            for link, since_s in self._since_s.items()
            if at_once or now_s - since_s >= (UP_AFTER_S if link in self.down else DOWN_AFTER_S)
        }
        for link in settled:
            del self._since_s[link]
        self.down ^= frozenset(settled)
        return min(settled.values(), default=None)

    def _seen(self) -> set[int]:
        return {self._link_at[place] for place in self._ports_down}


@dataclass
class Change:
    """What one switch does in one step."""

    add: list[FlowRule] = field(default_factory=list)
    delete: list[FlowRule] = field(default_factory=list)


Step = Mapping[int, Change]
"""By datapath id. Every switch has to confirm a step before the next one begins."""


@dataclass(frozen=True)
class Transition:
    """From some rules to others: `steps` one after the other, and `rest` when old packets have arrived."""

    steps: tuple[Step, ...]
    rest: Step


def transition(
    held: Rules,
    wanted: Rules,
    path_sets: PathSets,
    leading: Mapping[tuple[int, int], Path | None],
) -> Transition:
    """How to go from the held rules to the wanted ones.

    Args:
        held, wanted: rules as `plan_rules` makes them.
        path_sets: as declared.
        leading: the `primaries` that the wanted rules are for.
    """
    adding: dict[int, dict[int, Change]] = defaultdict(lambda: defaultdict(Change))
    deleting: dict[int, dict[int, Change]] = defaultdict(lambda: defaultdict(Change))
    rest: dict[int, Change] = defaultdict(Change)

    sites = {dpid(k): k for ends in path_sets for k in ends}

    def place(number: int, rule: FlowRule) -> tuple[int, int] | None:
        """How far a rule is from the beginning and from the end of its path; None when it is on no path."""
        name = RuleId.of(rule.cookie)
        if name is None or name.kind not in (Kind.PATH, Kind.PRIMARY):
            return None
        ends = name.src, name.dst
        path = path_sets[ends][name.path] if name.kind is Kind.PATH else leading[ends]
        if path is None:  # the two sites are parted: the source stops sending first
            return int(sites[number] != name.src), 0
        if sites[number] not in path:
            return None
        position = path.index(sites[number])
        return position, len(path) - 1 - position

    for number, rules in wanted.items():
        add, delete = difference(rules, held[number])
        for rule in add:
            at = place(number, rule)
            adding[at[1] if at else 0][number].add.append(rule)
        for rule in delete:
            at = place(number, rule)
            (deleting[at[0]] if at else rest)[number].delete.append(rule)
    steps = [adding[k] for k in sorted(adding)] + [deleting[k] for k in sorted(deleting)]
    return Transition(tuple(steps), rest)
