"""All switches of one topology together, and what the HTTP interface tells about them.

Pure but for the lock: the OpenFlow application reports events and carries out the commands it gets back,
the HTTP threads only look. Times are seconds of one monotonic clock, handed in.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.rules import Kind, RuleId, plan_rules
from controller.session import Command, Installed, Session
from controller.steering import Orders, Steering
from topologies.addressing import HOST_PORT, dpid, wan_port
from topologies.model import Topology
from topologies.paths import hops_of, is_intact, path_sets

SCHEMA = 1
POLL_S = 10.0
RULE_S = 60e-6
"""What reading one rule back costs this process."""
POLL_SHARE = 0.02
"""Of a core: how much reading the switches again and again may take."""


def poll_seconds(rules: int) -> float:
    """How often switches with so many rules altogether are read again: every ten seconds, or less often.

    Rules grow with the square of the sites. 64 sites have 72,000, which take four seconds of a core to read:
    every ten seconds that would be nearly half a core that the network lacks.
    """
    return max(POLL_S, rules * RULE_S / POLL_SHARE)


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
    """What a switch dropped in one table: 0 is traffic other than IPv4, 1 is addresses that are unknown or,
    for now, out of reach."""

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
        self.steering = Steering(topology, self.paths, self.sessions)
        self.unexpected: set[int] = set()
        """Datapath ids that are connected and not of this topology. They are given nothing."""
        self.refresh_wanted = threading.Event()
        self._start = secrets.token_hex(4)
        self._changed = threading.Condition(threading.RLock())
        self._peers = {
            dpid(k): {wan_port(topology, k, v): topology.site_names[v] for v in topology.neighbours(k)}
            for k in range(len(topology.site_names))
        }

    # What the OpenFlow application reports. Each answer is commands for switches, perhaps other ones.

    def on_connect(self, number: int, now_s: float) -> Orders:
        def connect(session: Session) -> list[Command]:
            self.steering.on_connect(now_s)
            return session.on_connect(now_s, hold=self.steering.holding)

        return self._report(number, connect, now_s)

    def on_disconnect(self, number: int, now_s: float) -> Orders:
        return self._report(number, lambda session: session.on_disconnect(), now_s)

    def on_rules(self, number: int, installed: Sequence[Installed], now_s: float) -> Orders:
        return self._report(number, lambda session: session.on_rules(installed, now_s), now_s)

    def on_barrier(self, number: int, now_s: float) -> Orders:
        return self._report(number, lambda session: session.on_barrier(now_s), now_s)

    def on_error(self, number: int, text: str, now_s: float) -> Orders:
        return self._report(number, lambda session: session.on_error(text), now_s)

    def on_ports(self, number: int, ports: Mapping[int, bool], now_s: float) -> Orders:
        """A switch has told about all its ports: number to whether it is up."""

        def tell(session: Session) -> None:
            session.ports = dict(ports)
            self.steering.on_ports(number, ports, now_s)

        return self._report(number, tell, now_s)

    def on_port(self, number: int, port: int, up: bool | None, now_s: float) -> Orders:
        """A port came up, went down, or (None) is gone."""

        def tell(session: Session) -> None:
            session.on_port(port, up)
            self.steering.watch.report(number, port, bool(up), now_s)

        return self._report(number, tell, now_s)

    def poll(self, now_s: float) -> Orders:
        """Have every switch read again."""
        with self._changed:
            return [(number, session.on_tick(now_s)) for number, session in self.sessions.items()]

    def on_time(self, now_s: float) -> Orders:
        """Look after what only the clock brings; nothing to do unless `self.steering.pending`."""
        with self._changed:
            orders = self.steering.on_time(now_s)
            self._changed.notify_all()
            return orders

    def _report(self, number: int, event: Callable[[Session], list[Command] | None], now_s: float) -> Orders:
        """Report an event to the session of one switch; nothing comes of what a stranger says."""
        with self._changed:
            session = self.sessions.get(number)
            if session is None:
                return []
            orders = [(number, event(session) or []), *self.steering.on_time(now_s)]
            self._changed.notify_all()
            return orders

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
                **self._links_and_primaries(),
                "switches": [self._switch(number, session) for number, session in self.sessions.items()],
            }

    def _links_and_primaries(self) -> dict[str, Any]:
        steering, links = self.steering, self.topology.links
        last = steering.last
        return {
            "links_down": [list(links[i].endpoints) for i in sorted(steering.watch.down)],
            "rerouting": steering.moving,
            "version": steering.version,
            "reroutes": steering.reroutes,
            "moved": len(steering.moved),
            "parted": sum(path is None for path in steering.leading.values()),
            "last_reroute": last
            and {
                "links_down": [list(links[i].endpoints) for i in last.links_down],
                "pairs": last.pairs,
                "seconds_s": round(last.seconds_s, 4),
            },
        }

    def links(self, since: str = "", wait_s: float = 0.0) -> dict[str, Any]:
        """The links that the primaries avoid, as soon as they are others than at the token `since`, or after
        `wait_s` seconds. Not before all switches have told about their ports.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self.steering.holding and self._links_token() != since, max(0.0, wait_s)
            )
            links = self.topology.links
            return {
                "schema": SCHEMA,
                "token": self._links_token(),
                "down": [list(links[i].endpoints) for i in sorted(self.steering.down)],
            }

    def _links_token(self) -> str:
        """Another one with every change, and after a restart of the controller."""
        return f"{self._start}-{'' if self.steering.holding else self.steering.version}"

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

    def routes(
        self, src: str | None = None, dst: str | None = None, *, moved: bool = False
    ) -> dict[str, Any]:
        """Every path of every ordered pair of sites by number, and which way absent numbers go.

        Args:
            src, dst: show only pairs with this source, or destination.
            moved: show only pairs whose primary is another one than declared.
        """
        names = self.topology.site_names
        with self._changed:
            steering = self.steering
            cut = hops_of(self.topology, steering.down)
            chosen = set(steering.moved) if moved else self.paths.keys()
            return {
                "schema": SCHEMA,
                "topology": self.topology.name,
                **self._links_and_primaries(),
                "routes": [
                    {
                        "src": names[u],
                        "dst": names[v],
                        "paths": [
                            {"path": n, "sites": [names[k] for k in path], "intact": is_intact(path, cut)}
                            for n, path in enumerate(paths)
                        ],
                        "primary": self._primary((u, v)),
                    }
                    for (u, v), paths in self.paths.items()
                    if (u, v) in chosen and src in (None, names[u]) and dst in (None, names[v])
                ],
            }

    def _primary(self, pair: tuple[int, int]) -> dict[str, Any]:
        """Where absent path numbers go; `path` is None for a way that is no path of the pair's set."""
        path = self.steering.leading[pair]
        return {
            "path": self.paths[pair].index(path) if path in self.paths[pair] else None,
            "sites": path and [self.topology.site_names[k] for k in path],
            "moved": path != self.steering.declared[pair],
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
