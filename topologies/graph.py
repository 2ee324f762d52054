"""From a graph that somebody else described to a Topology.

Other people's files name a site twice or not at all, give no rate, join a pair by several links and a site
to itself. Whatever is changed on the way is said in a warning, in one line a kind.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from topologies.errors import InvalidFileError
from topologies.geo import Position, delay_over, distance_km
from topologies.model import Topology
from topologies.options import Options, RateRule
from topologies.units import Delay, Rate
from topologies.validation import validated

Warn = Callable[[str], None]

_LONGEST = 32
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Node:
    """A site as it was found. `key` is how edges refer to it, `label` what people call it."""

    key: str
    label: str | None = None
    position: Position | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A link as it was found; None for what is not known. `km` is its length."""

    src: str
    dst: str
    rate: Rate | None = None
    delay: Delay | None = None
    km: float | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph as it was found. `source` is how errors name it; an edge of a directed one is one direction."""

    source: str
    name: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    directed: bool = False


@dataclass
class _Merged:
    """What is known of one link between a and b: the edges of each direction."""

    there: list[Edge] = field(default_factory=list)
    back: list[Edge] = field(default_factory=list)


def to_topology(graph: Graph, options: Options, warn: Warn) -> Topology:
    """Make a topology of a graph; sites keep the graph's order.

    A rate that is not known comes from `options`, a delay from the length of the link, else from the
    positions of its sites, else it is zero. Raises InvalidFileError when there is no rate, when an edge ends
    nowhere, or when some sites cannot be reached.
    """
    if not graph.nodes:
        raise InvalidFileError(f"{graph.source}: there is no site in it", hint="is it the right file?")
    names = _names(graph, warn)
    merged = _merge(graph, names, warn)
    positions = {node.key: node.position for node in graph.nodes}
    rates = _Rates(graph, options)
    links = []
    without_length: list[str] = []
    parallel: list[str] = []
    for (a, b), found in merged.items():
        there, back = found.there or found.back, found.back or found.there
        shown = f"{names[a]}-{names[b]}"
        if max(len(there), len(back)) > 1:
            parallel.append(shown)
        halves = []
        for edges in (there, back):
            delay = _delay(edges, (positions[a], positions[b]))
            if delay is None and options.delay is None and shown not in without_length:
                without_length.append(shown)
            halves.append({"rate": rates.of(edges, shown), "delay": delay or Delay(0)})
        link: dict[str, Any] = {"endpoints": [names[a], names[b]]}
        if halves[0] == halves[1]:
            link |= halves[0]
        else:
            link |= {"forward": halves[0], "backward": halves[1]}
        links.append(link)
    rates.check()
    if parallel:
        warn(f"parallel links were merged, their rates added: {_some(parallel)}")
    if without_length:
        warn(f"links of unknown length have no delay: {_some(without_length)}")
    sites = {names[node.key]: _site(node) for node in graph.nodes}
    _check_connected(graph, names, merged)
    network = {"name": _topology_name(graph.name), "sites": sites, "links": links}
    return validated(Topology, network, graph.source, error=InvalidFileError)


class _Rates:
    """Rates of links, given or by the rule; remembers which are missing."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self._graph = graph
        self._rule: RateRule | None = options.default_rate or options.rate
        self._source = random.Random(options.seed)
        self._missing: list[str] = []
        self._asked = 0

    def of(self, edges: Sequence[Edge], link: str) -> Rate:
        """The sum of the rates of parallel edges, as far as they are known."""
        known = [edge.rate.bps for edge in edges if edge.rate is not None]
        self._asked += 1
        if known:
            return Rate(sum(known))
        if self._rule is not None:
            return self._rule.draw(self._source)
        if link not in self._missing:
            self._missing.append(link)
        return Rate(Rate.minimum_bps)

    def check(self) -> None:
        if self._missing:
            all_of_them = 2 * len(self._missing) == self._asked
            what = "no link has a rate" if all_of_them else f"links without a rate: {_some(self._missing)}"
            raise InvalidFileError(
                f"{self._graph.source}: {what}",
                hint=f"say one behind its name: '{self._graph.source}?default-rate=100mbit'",
            )


def _delay(edges: Sequence[Edge], ends: Sequence[Position | None]) -> Delay | None:
    """The least delay of parallel edges; by length where none is given, else by the crow's flight."""
    delays = [edge.delay for edge in edges if edge.delay is not None]
    delays += [delay_over(edge.km) for edge in edges if edge.delay is None and edge.km is not None]
    if not delays and ends[0] is not None and ends[1] is not None:
        return delay_over(distance_km(ends[0], ends[1]))
    return min(delays, default=None)


def _site(node: Node) -> dict[str, Any]:
    site: dict[str, Any] = {}
    if node.position is not None:
        site |= {"lat": node.position[0], "lon": node.position[1]}
    if node.region:
        site["region"] = node.region
    return site


def _merge(graph: Graph, names: dict[str, str], warn: Warn) -> dict[tuple[str, str], _Merged]:
    """The edges by the pair that they join, in the order in which pairs first occur."""
    merged: dict[tuple[str, str], _Merged] = {}
    loops: list[str] = []
    for edge in graph.edges:
        for end in (edge.src, edge.dst):
            if end not in names:
                raise InvalidFileError(f"{graph.source}: a link ends at {end!r}, which is no site of it")
        if edge.src == edge.dst:
            loops.append(names[edge.src])
            continue
        backward = (edge.dst, edge.src) in merged
        pair = (edge.dst, edge.src) if backward else (edge.src, edge.dst)
        found = merged.setdefault(pair, _Merged())
        if not graph.directed:
            found.there.append(edge)
            found.back.append(edge)
        else:
            (found.back if backward else found.there).append(edge)
    if loops:
        warn(f"links from a site to itself were dropped: {_some(sorted(set(loops)))}")
    single = [f"{names[a]}-{names[b]}" for (a, b), m in merged.items() if not m.there or not m.back]
    if graph.directed and single and len(single) < len(merged):
        warn(f"links given in one direction are taken for both: {_some(single)}")
    return merged


def _check_connected(graph: Graph, names: dict[str, str], pairs: Iterable[tuple[str, str]]) -> None:
    neighbours: dict[str, list[str]] = {key: [] for key in names}
    for a, b in pairs:
        neighbours[a].append(b)
        neighbours[b].append(a)
    parts: list[list[str]] = []
    left = dict.fromkeys(names)
    while left:
        part, todo = [], [next(iter(left))]
        del left[todo[0]]
        while todo:
            part.append(todo.pop())
            fresh = [key for key in neighbours[part[-1]] if key in left]
            for key in fresh:
                left.pop(key, None)
            todo.extend(dict.fromkeys(fresh))
        parts.append(part)
    if len(parts) > 1:
        parts.sort(key=len, reverse=True)
        lost = [names[key] for part in parts[1:] for key in part]
        raise InvalidFileError(
            f"{graph.source}: it is in {len(parts)} pieces; not joined to the largest: {_some(lost)}",
            hint="add a link or remove them",
        )


def _names(graph: Graph, warn: Warn) -> dict[str, str]:
    """A site name for every key. Plain labels keep theirs, then the others take what is free."""
    result: dict[str, str] = {}
    wanted = {node.key: plain_name(node.label or "") for node in graph.nodes}
    if len(wanted) < len(graph.nodes):
        keys = [node.key for node in graph.nodes]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise InvalidFileError(f"{graph.source}: two sites have the id {twice[0]!r}")
    taken: set[str] = set()
    for node in graph.nodes:
        if wanted[node.key] == node.label and node.label not in taken:
            result[node.key] = node.label
            taken.add(node.label)
    unnamed, changed = [], []
    for number, node in enumerate(graph.nodes, start=1):
        if node.key in result:
            continue
        base = wanted[node.key]
        if not base:
            base = f"site-{plain_name(node.key) or number}"[:_LONGEST]
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base[: _LONGEST - len(str(count)) - 1]}-{count}"
        taken.add(name)
        result[node.key] = name
        if wanted[node.key]:
            changed.append(f"{node.label} is {name}")
        else:
            unnamed.append(name)
    if changed:
        warn(f"site names were adapted: {_some(changed, 3)}")
    if unnamed:
        warn(f"sites without a name were given one: {_some(unnamed, 3)}")
    return {node.key: result[node.key] for node in graph.nodes}


def plain_name(label: str) -> str:
    """The label as a site name: small letters without accents, digits, and '-' for the rest; may be ''."""
    plain = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_LONGEST].rstrip("-")


def _topology_name(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("._-")[:64] or "imported"


def _some(items: Sequence[str], most: int = _SHOWN) -> str:
    """All of a few, the first of many."""
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
