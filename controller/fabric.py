"""All switches of one topology together, and what the HTTP interface tells about them.

Pure but for the lock: the OpenFlow application reports events and carries out the commands it gets back,
the HTTP threads only look. Times are seconds of one monotonic clock, handed in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controller.rules import Kind, RuleId, plan_rules
from controller.session import Command, Installed, Session
from topologies.addressing import HOST_PORT, dpid, wan_port
from topologies.model import Topology
from topologies.paths import path_sets

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PathCount:
    """What entered one path at its source. `path` is None for numbers that the pair does not have."""

    src: str
    dst: str
    path: int | None
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DropCount:
    """What a switch dropped in one table: 0 is traffic other than IPv4, 1 is unknown addresses."""

    site: str
    table: int
    packets: int
    bytes: int


class Fabric:
    """The sessions of every switch of a topology, by datapath id."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.paths = path_sets(topology)
        rules = plan_rules(topology, self.paths)
        self.sites = {dpid(k): name for k, name in enumerate(topology.site_names)}
        self.sessions = {number: Session(held) for number, held in rules.items()}
        self.unexpected: set[int] = set()
        """Datapath ids that are connected and not of this topology. They are given nothing."""
        self.refresh_wanted = threading.Event()
        self._changed = threading.Condition(threading.RLock())
        self._peers = {
            dpid(k): {wan_port(topology, k, v): topology.site_names[v] for v in topology.neighbours(k)}
            for k in range(len(topology.site_names))
        }

    def tell(self, number: int, event: Callable[[Session], list[Command] | None]) -> list[Command]:
        """Report an event to the session of one switch and get the commands for it; none for a stranger."""
        with self._changed:
            session = self.sessions.get(number)
            if session is None:
                return []
            commands = event(session) or []
            self._changed.notify_all()
            return commands

    def note_stranger(self, number: int, *, here: bool) -> None:
        """A switch that is not of this topology connected, or left."""
        with self._changed:
            (self.unexpected.add if here else self.unexpected.discard)(number)

    def refresh(self, since_s: float, timeout_s: float) -> bool:
        """Have the connected switches read again and wait; False when one was not read in time."""
        self.refresh_wanted.set()
        with self._changed:
            return self._changed.wait_for(lambda: self._read_since(since_s), timeout_s)

    def _read_since(self, since_s: float) -> bool:
        connected = [session for session in self.sessions.values() if session.connected]
        return all(session.read_at_s is not None and session.read_at_s >= since_s for session in connected)

    # What the HTTP interface shows. Every answer is a JSON map with a schema number.

    def health(self) -> dict[str, Any]:
        """Ready means: every switch is connected and has shown that it holds exactly its rules."""
        with self._changed:
            connected = sorted(number for number, session in self.sessions.items() if session.connected)
            return {
                "schema": SCHEMA,
                "ready": all(session.in_sync for session in self.sessions.values()),
                "connected": connected,
                "missing": sorted(set(self.sessions) - set(connected)),
                "unexpected": sorted(self.unexpected),
                "rules": sum(
                    len(session.installed) - session.foreign_rules
                    for session in self.sessions.values()
                    if session.connected
                ),
                "switches": [self._switch(number, session) for number, session in self.sessions.items()],
            }

    def _switch(self, number: int, session: Session) -> dict[str, Any]:
        return {
            "dpid": number,
            "site": self.sites[number],
            "connected": session.connected,
            "in_sync": session.in_sync,
            "rules_planned": len(session.wanted),
            "rules_foreign": session.foreign_rules if session.connected else 0,
            "repairs": session.repairs,
            "last_error": session.last_error,
            "ports": [
                {"port": port, "peer": self.peer(number, port), "up": up}
                for port, up in sorted(session.ports.items())
            ],
        }

    def peer(self, number: int, port: int) -> str | None:
        """The site behind a port: a neighbour, the switch's own, or None for a port that is not planned."""
        return self.sites[number] if port == HOST_PORT else self._peers[number].get(port)

    def routes(self) -> dict[str, Any]:
        """Every path of every ordered pair of sites, by number."""
        names = self.topology.site_names
        return {
            "schema": SCHEMA,
            "topology": self.topology.name,
            "routes": [
                {
                    "src": names[src],
                    "dst": names[dst],
                    "paths": [
                        {"path": number, "sites": [names[k] for k in path]}
                        for number, path in enumerate(paths)
                    ],
                }
                for (src, dst), paths in self.paths.items()
            ],
        }

    def counters(self, now_s: float) -> dict[str, Any]:
        """What entered each path at its source and what each switch dropped, and how old that is."""
        with self._changed:
            read = [s.read_at_s for s in self.sessions.values() if s.connected and s.read_at_s is not None]
            paths, drops = self.counts()
            return {
                "schema": SCHEMA,
                "age_s": round(max((now_s - at for at in read), default=0.0), 3),
                "paths": [
                    {"src": c.src, "dst": c.dst, "path": c.path, "packets": c.packets, "sent_bytes": c.bytes}
                    for c in paths
                ],
                "dropped": [
                    {"site": c.site, "table": c.table, "packets": c.packets, "dropped_bytes": c.bytes}
                    for c in drops
                ],
            }

    def counts(self) -> tuple[list[PathCount], list[DropCount]]:
        """The counters of every path and of every drop rule, from the last reading of each switch."""
        names = self.topology.site_names
        paths, drops = [], []
        with self._changed:
            for number, session in self.sessions.items():
                for entry in session.installed:
                    name = RuleId.of(entry.rule.cookie)
                    if name is None:
                        continue
                    if name.kind is Kind.DROP:
                        drops.append(DropCount(self.sites[number], name.path, entry.packets, entry.bytes))
                    elif name.kind in (Kind.PATH, Kind.PRIMARY) and dpid(name.src) == number:
                        path = name.path if name.kind is Kind.PATH else None
                        paths.append(
                            PathCount(names[name.src], names[name.dst], path, entry.packets, entry.bytes)
                        )
        return paths, drops

    def switches(self) -> list[tuple[int, str, Session]]:
        """(datapath id, site, session) of every switch; look, do not touch."""
        return [(number, self.sites[number], session) for number, session in self.sessions.items()]

    def on_rules(self, number: int, installed: Sequence[Installed], now_s: float) -> list[Command]:
        return self.tell(number, lambda session: session.on_rules(installed, now_s))
