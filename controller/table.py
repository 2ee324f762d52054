"""A model of OpenFlow 1.3 switches and of the network they form, exact enough to prove what the rules do.

It follows the specification where rules of ours touch it: the highest priority wins, metadata starts at
zero, tables are visited in ascending order, adding replaces the entry of the same key. Where the
specification leaves the outcome open (two entries of one priority match) or where a packet would multiply
or circle, it raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.rules import ETH_TYPE_IPV4, FlowRule, is_ours
from controller.session import Add, Barrier, Command, Delete, Installed, ReadPorts, ReadRules
from topologies.addressing import HOST_PORT, dpid, wan_ip, wan_port
from topologies.dscp import encode
from topologies.model import Topology
from topologies.paths import hops_of

OFPP_MAX = 0xFFFFFF00
"""Port numbers above are reserved ones: flood, all, controller."""


class ModelError(AssertionError):
    """The rules do something that no network should: circle, flood, or depend on luck."""


@dataclass(frozen=True, slots=True)
class Packet:
    eth_type: int = ETH_TYPE_IPV4
    ipv4_src: str = ""
    ipv4_dst: str = ""
    ip_dscp: int = 0
    length: int = 100


@dataclass(slots=True)
class _Entry:
    rule: FlowRule
    packets: int = 0
    bytes: int = 0


@dataclass
class ModelSwitch:
    """One switch: entries by table, and within it by (priority, field names), then by values."""

    dpid: int
    tables: dict[int, dict[tuple[int, tuple[str, ...]], dict[tuple[object, ...], _Entry]]] = field(
        default_factory=dict
    )

    def add(self, rule: FlowRule) -> None:
        """OFPFC_ADD: replaces an entry of the same key, and resets its counters."""
        self._group(rule)[tuple(value for _, value in rule.match)] = _Entry(rule)

    def delete(self, rule: FlowRule) -> None:
        """OFPFC_DELETE_STRICT restricted to our cookies."""
        group = self._group(rule)
        values = tuple(value for _, value in rule.match)
        if values in group and is_ours(group[values].rule.cookie):
            del group[values]

    def _group(self, rule: FlowRule) -> dict[tuple[object, ...], _Entry]:
        kind = (rule.priority, tuple(name for name, _ in rule.match))
        return self.tables.setdefault(rule.table, {}).setdefault(kind, {})

    @property
    def entries(self) -> tuple[Installed, ...]:
        return tuple(
            Installed(entry.rule, entry.packets, entry.bytes)
            for table in self.tables.values()
            for group in table.values()
            for entry in group.values()
        )

    @property
    def rules(self) -> frozenset[FlowRule]:
        return frozenset(entry.rule for entry in self.entries)

    def execute(self, commands: Iterable[Command]) -> list[ReadRules | ReadPorts | Barrier]:
        """Carry commands out; the ones that expect an answer are returned, in order."""
        questions: list[ReadRules | ReadPorts | Barrier] = []
        for command in commands:
            if isinstance(command, Add):
                self.add(command.rule)
            elif isinstance(command, Delete):
                self.delete(command.rule)
            else:
                questions.append(command)
        return questions

    def lookup(self, table: int, fields: dict[str, object]) -> _Entry | None:
        """The entry that a packet of these fields meets in a table."""
        best: _Entry | None = None
        equal: _Entry | None = None
        for (priority, names), group in self.tables.get(table, {}).items():
            if best is not None and priority < best.rule.priority:
                continue
            entry = group.get(tuple([fields.get(name) for name in names]))
            if entry is not None:
                equal = best if best is not None and priority == best.rule.priority else None
                best = entry
        if best is not None and equal is not None:
            raise ModelError(
                f"switch {self.dpid}: rules of equal priority match: {equal.rule} and {best.rule}"
            )
        return best

    def process(self, packet: Packet, in_port: int) -> int | None:
        """The port the packet leaves by, or None where it is dropped."""
        fields: dict[str, object] = {"eth_type": packet.eth_type, "in_port": in_port, "metadata": 0}
        if packet.eth_type == ETH_TYPE_IPV4:
            fields |= {"ipv4_src": packet.ipv4_src, "ipv4_dst": packet.ipv4_dst, "ip_dscp": packet.ip_dscp}
        table, outputs = 0, list[int]()
        while True:
            entry = self.lookup(table, fields)
            if entry is None:
                break
            entry.packets += 1
            entry.bytes += packet.length
            rule = entry.rule
            if rule.output is not None:
                outputs.append(rule.output)
            if rule.write_metadata is not None:
                value, mask = rule.write_metadata
                held = fields["metadata"]
                assert isinstance(held, int)
                fields["metadata"] = held & ~mask | value & mask
            if rule.goto is None:
                break
            if rule.goto <= table:
                raise ModelError(f"switch {self.dpid}: table {table} goes back to table {rule.goto}")
            table = rule.goto
        if len(outputs) > 1:
            raise ModelError(f"switch {self.dpid}: one packet leaves by the ports {outputs}")
        if outputs and outputs[0] > OFPP_MAX:
            raise ModelError(f"switch {self.dpid}: a packet is flooded (port {outputs[0]:#x})")
        return outputs[0] if outputs and outputs[0] != in_port else None


@dataclass(frozen=True, slots=True)
class Journey:
    """Where a packet went: the sites whose switches it passed, and the site that got it (or None)."""

    sites: tuple[int, ...]
    delivered_to: int | None


class ModelNetwork:
    """The switches of a topology, wired as the emulator wires them."""

    def __init__(self, topology: Topology) -> None:
        size = len(topology.site_names)
        self.topology = topology
        self.switches = {dpid(k): ModelSwitch(dpid(k)) for k in range(size)}
        self._wires = {
            (u, wan_port(topology, u, v)): (v, wan_port(topology, v, u))
            for u in range(size)
            for v in topology.neighbours(u)
        }
        self.cut(())

    def cut(self, links: Iterable[int]) -> None:
        """From now on what is sent over these links, and over no others, is lost."""
        self._cut = hops_of(self.topology, links)

    def install(self, rules: dict[int, tuple[FlowRule, ...]]) -> None:
        for number, held in rules.items():
            for rule in held:
                self.switches[number].add(rule)

    def send(self, src: int, dst: int, *, path: int = 0, cls: int = 0) -> Journey:
        """Follow an IPv4 packet from one site towards another."""
        return self.follow(
            Packet(ipv4_src=wan_ip(src), ipv4_dst=wan_ip(dst), ip_dscp=encode(path, cls) >> 2), at=src
        )

    def follow(self, packet: Packet, at: int) -> Journey:
        """Follow a packet that site `at` sends; ModelError when it comes by a place a second time."""
        site, in_port = at, HOST_PORT
        passed, seen = [site], {(site, in_port)}
        while True:
            out = self.switches[dpid(site)].process(packet, in_port)
            if out is None:
                return Journey(tuple(passed), None)
            if out == HOST_PORT:
                return Journey(tuple(passed), site)
            if (site, out) not in self._wires:
                return Journey(tuple(passed), None)
            following, in_port = self._wires[site, out]
            if (site, following) in self._cut:
                return Journey(tuple(passed), None)
            site = following
            if (site, in_port) in seen:
                raise ModelError(f"a packet circles: {[*passed, site]}")
            seen.add((site, in_port))
            passed.append(site)
