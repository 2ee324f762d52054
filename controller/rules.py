"""From path sets to flow rules: what every switch has to hold so that every site reaches every other on
every path.

Pure. OpenFlow cannot mask `ip_dscp`, and a path number means nothing without its source and destination,
so there are two tables:

- table 0 turns each of the 64 DSCP values into a path number in the metadata; what is not IPv4 is dropped
  there, which is why nothing is ever flooded (sites have static ARP entries, and frames keep their
  addresses end to end);
- table 1 forwards by path number, source and destination. A rule without the metadata stands below and
  sends a path number that the pair does not have along the primary. What matches nothing is dropped and
  counted.

While links are down, the paths that they cut have no rules, so their numbers are absent ones, and the rule
for absent numbers leads along a path that is whole. A sender need not know: whatever number it writes, its
packets arrive as long as there is a way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from topologies.addressing import HOST_PORT, dpid, wan_ip, wan_port
from topologies.dscp import CLASSES, MAX_PATHS, encode
from topologies.model import Topology
from topologies.paths import Path, hops_of, is_intact, primaries

ETH_TYPE_IPV4 = 0x0800
CLASSIFY_TABLE = 0
FORWARD_TABLE = 1
PATH_MASK = MAX_PATHS - 1

PRIORITY_PATH = 200
PRIORITY_PRIMARY = 100
PRIORITY_CLASSIFY = 100
PRIORITY_MISS = 0

COOKIE_MARK = 0x5342 << 48
COOKIE_MASK = 0xFFFF << 48
_SITE_BITS = 20


class Kind(IntEnum):
    """What a rule is for; part of its cookie."""

    CLASSIFY = 1
    PATH = 2
    PRIMARY = 3
    """Sends an absent path number along the primary, or what stands in for it while it is cut."""
    DROP = 4


@dataclass(frozen=True, slots=True)
class RuleId:
    """What a cookie says about its rule. `path`, `src` and `dst` are 0 where the kind has none."""

    kind: Kind
    path: int = 0
    src: int = 0
    dst: int = 0

    @property
    def cookie(self) -> int:
        return (
            COOKIE_MARK
            | self.kind << 2 * _SITE_BITS + 4
            | self.path << 2 * _SITE_BITS
            | self.src << _SITE_BITS
            | self.dst
        )

    @classmethod
    def of(cls, cookie: int) -> RuleId | None:
        """Read a cookie; None when it is not one of ours."""
        sites = (1 << _SITE_BITS) - 1
        kind = cookie >> 2 * _SITE_BITS + 4 & 0xF
        if not is_ours(cookie) or kind not in tuple(Kind):
            return None
        return cls(Kind(kind), cookie >> 2 * _SITE_BITS & 0xF, cookie >> _SITE_BITS & sites, cookie & sites)


def is_ours(cookie: int) -> bool:
    return cookie & COOKIE_MASK == COOKIE_MARK


MatchValue = int | str | tuple[int, int] | tuple[str, str]
"""A field's value, or (value, mask)."""
Match = tuple[tuple[str, MatchValue], ...]
"""OXM field names and values, sorted by name."""


@dataclass(frozen=True, slots=True)
class FlowRule:
    """One entry of a flow table.

    `output` is the port of an apply-actions instruction, `write_metadata` is (value, mask). With neither
    of them and no `goto` the packet is dropped. `other` names what a switch reports and no rule of ours
    has (timeouts, other actions), so that such a rule never equals a planned one.
    """

    table: int
    priority: int
    match: Match
    cookie: int
    output: int | None = None
    write_metadata: tuple[int, int] | None = None
    goto: int | None = None
    other: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, int, Match]:
        """What identifies an entry in a switch: adding a rule of the same key replaces it."""
        return self.table, self.priority, self.match

    def to_ofctl(self) -> str:
        """The rule as `ovs-ofctl --no-stats --no-names dump-flows` prints it, in a fixed order."""
        fields = dict(self.match)
        words = []
        if self.priority != 32768:
            words.append(f"priority={self.priority}")
        if fields.pop("eth_type", None) == ETH_TYPE_IPV4:
            words.append("ip")
        if "metadata" in fields:
            metadata = fields.pop("metadata")
            words.append(f"metadata={metadata:#x}" if metadata else "metadata=0")
        names = {"ipv4_src": "nw_src", "ipv4_dst": "nw_dst", "ip_dscp": "nw_tos"}
        for name, value in sorted(fields.items(), key=lambda item: list(names).index(item[0])):
            shown = value << 2 if name == "ip_dscp" and isinstance(value, int) else value
            words.append(f"{names[name]}={shown}")
        actions = []
        if self.output is not None:
            actions.append(f"output:{self.output}")
        if self.write_metadata is not None:
            value, mask = self.write_metadata
            actions.append(f"write_metadata:{value:#x}/{mask:#x}" if value else f"write_metadata:0/{mask:#x}")
        if self.goto is not None:
            actions.append(f"goto_table:{self.goto}")
        done = ",".join(actions) or "drop"
        return f"cookie={self.cookie:#x}, table={self.table}, {','.join(words)} actions={done}"


def _match(**fields: MatchValue) -> Match:
    return tuple(sorted(fields.items()))


def _common_rules() -> list[FlowRule]:
    rules = [
        FlowRule(
            table=CLASSIFY_TABLE,
            priority=PRIORITY_CLASSIFY,
            match=_match(eth_type=ETH_TYPE_IPV4, ip_dscp=encode(path, cls) >> 2),
            cookie=RuleId(Kind.CLASSIFY, path).cookie,
            write_metadata=(path, PATH_MASK),
            goto=FORWARD_TABLE,
        )
        for path in range(MAX_PATHS)
        for cls in range(CLASSES)
    ]
    rules += [
        FlowRule(table=table, priority=PRIORITY_MISS, match=(), cookie=RuleId(Kind.DROP, table).cookie)
        for table in (CLASSIFY_TABLE, FORWARD_TABLE)
    ]
    return rules


PathSets = Mapping[tuple[int, int], Sequence[Path]]


def plan_rules(
    topology: Topology, path_sets: PathSets, down: frozenset[int] = frozenset()
) -> dict[int, tuple[FlowRule, ...]]:
    """The rules of every switch, by datapath id, sorted by table, priority (highest first) and match.

    A path has rules only on the switches it passes, and none while it is cut; see `primaries` for the rest.
    """
    rules = {dpid(k): _common_rules() for k in range(len(topology.site_names))}
    cut = hops_of(topology, down)

    def along(path: Path, name: RuleId, priority: int, **more: MatchValue) -> None:
        match = _match(eth_type=ETH_TYPE_IPV4, ipv4_src=wan_ip(name.src), ipv4_dst=wan_ip(name.dst), **more)
        for site, port in _hops(topology, path):
            rules[dpid(site)].append(FlowRule(FORWARD_TABLE, priority, match, name.cookie, output=port))

    leading = primaries(topology, path_sets, down)
    for (src, dst), paths in path_sets.items():
        for number, path in enumerate(paths):
            if is_intact(path, cut):
                along(path, RuleId(Kind.PATH, number, src, dst), PRIORITY_PATH, metadata=number)
        primary = leading[src, dst]
        if primary is not None:
            along(primary, RuleId(Kind.PRIMARY, 0, src, dst), PRIORITY_PRIMARY)
    return {number: tuple(sorted(held, key=_order)) for number, held in rules.items()}


def _hops(topology: Topology, path: Path) -> list[tuple[int, int]]:
    """(site, output port) for every switch of a path; the last one hands over to its site."""
    return [(u, wan_port(topology, u, v)) for u, v in pairwise(path)] + [(path[-1], HOST_PORT)]


def _order(rule: FlowRule) -> tuple[int, int, str]:
    return rule.table, -rule.priority, repr(rule.match)


def difference(
    wanted: Iterable[FlowRule], installed: Iterable[FlowRule]
) -> tuple[tuple[FlowRule, ...], tuple[FlowRule, ...]]:
    """What to add to and what to delete from a switch so that it holds the wanted rules.

    To add are the missing rules and those that the switch holds otherwise; adding replaces them in one
    step, and a rule that is right already is left alone, with its counters. To delete are only rules with
    our cookie. Later tables come first, so that a packet is never sent on to a table that cannot serve it
    yet.
    """
    planned = {rule.key: rule for rule in wanted}
    held = {rule.key: rule for rule in installed}
    add = [rule for key, rule in planned.items() if held.get(key) != rule]
    delete = [rule for key, rule in held.items() if key not in planned and is_ours(rule.cookie)]
    return tuple(sorted(add, key=lambda r: (-r.table, _order(r)))), tuple(sorted(delete, key=_order))
