"""Reading other people's topology files: GML, GraphML, node-link JSON, SNDlib's native text, topohub.

The Internet Topology Zoo's GML and GraphML and topohub's node-link JSON are what these readers are made for;
files of the same kind from elsewhere serve as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from topologies.errors import CannotHonourError, InvalidFileError, StormbedError, nearest
from topologies.files import read_text
from topologies.geo import Position
from topologies.graph import Edge, Graph, Node, Warn
from topologies.units import Delay, Rate

MAX_BYTES = 20_000_000
SUFFIXES = (".gml", ".graphml")
TOPOHUB = "topohub:"

Attributes = Mapping[str, Any]


def read_graph(path: str | Path, warn: Warn) -> Graph | None:
    """The graph in a file of one of the formats here; None when the file is of none of them."""
    file, source = Path(path), str(path)
    suffix = file.suffix.lower()
    if suffix in SUFFIXES:
        text = read_text(path, MAX_BYTES)
        return read_gml(text, source, warn) if suffix == ".gml" else read_graphml(text, source, warn)
    if suffix == ".json":
        text = read_text(path, MAX_BYTES)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return None  # the YAML reader finds the line
        return read_node_link(data, source, warn) if is_node_link(data) else None
    if suffix in (".txt", ".native", ".sndlib"):
        text = read_text(path, MAX_BYTES)
        return read_sndlib(text, source, warn) if _SNDLIB.search(text) else None
    return None


# --- GML and GraphML, by networkx --------------------------------------------------------------------------


def read_gml(text: str, source: str, warn: Warn) -> Graph:
    """GML. Labels may be missing or occur twice; parallel edges need no `multigraph 1`."""
    import networkx  # a third of a second that topologies in YAML need not wait for

    text = re.sub(r"(?m)^(\s*multigraph\s+)0\b", r"\g<1>1", text, count=1)
    if not re.search(r"(?m)^\s*multigraph\s", text):
        # On the same line, so that errors name the right one.
        text = re.sub(r"(?m)^(\s*graph\s*\[)", r"\1 multigraph 1 ", text, count=1)
    try:
        found = networkx.parse_gml(text.splitlines(), label="id")
    except (networkx.NetworkXError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidFileError(f"{source}: not valid GML: {_first_line(error)}") from None
    return _from_networkx(found, source, warn)


def read_graphml(text: str, source: str, warn: Warn) -> Graph:
    """GraphML. A file with entities of its own is refused, since they can unfold without end."""
    import xml.etree.ElementTree as ElementTree

    import networkx

    if "<!ENTITY" in text:
        raise InvalidFileError(f"{source}: it declares XML entities", hint="write the values out")
    try:
        root = ElementTree.fromstring(text)
        found = networkx.parse_graphml(text, force_multigraph=True)
    except StopIteration:
        raise InvalidFileError(f"{source}: not valid GraphML: there is no graph in it") from None
    except (
        networkx.NetworkXError, ElementTree.ParseError, ValueError, TypeError, KeyError, RecursionError
    ) as error:  # fmt: skip
        raise InvalidFileError(f"{source}: not valid GraphML: {_first_line(error)}") from None
    # networkx makes a node of whatever an edge names.
    declared = {element.get("id") for element in root.iter() if element.tag.rpartition("}")[2] == "node"}
    for key in found.nodes:
        if key not in declared:
            raise InvalidFileError(f"{source}: a link ends at {key!r}, which is no site of it")
    return _from_networkx(found, source, warn)


def _from_networkx(found: Any, source: str, warn: Warn) -> Graph:
    notes = _Notes(source, warn)
    nodes = [_node(str(key), attributes, notes) for key, attributes in found.nodes(data=True)]
    edges = [_edge(str(u), str(v), attributes, notes) for u, v, attributes in found.edges(data=True)]
    notes.tell()
    name = next((str(found.graph[key]) for key in ("label", "name", "Network") if found.graph.get(key)), "")
    return Graph(source, name or Path(source).stem, nodes, edges, found.is_directed())


# --- node-link JSON and topohub ----------------------------------------------------------------------------


def is_node_link(data: Any) -> bool:
    """Whether JSON data are a node-link graph rather than a topology file."""
    return isinstance(data, dict) and "nodes" in data and ("edges" in data or "links" in data)


def read_node_link(data: Mapping[str, Any], source: str, warn: Warn) -> Graph:
    """networkx's node-link data. Edges may be under `edges` or `links`, positions under `pos` (lon, lat)."""
    notes = _Notes(source, warn)
    edges_key = "edges" if "edges" in data else "links"
    nodes, edges = [], []
    for number, entry in enumerate(_maps(data, "nodes", source)):
        if "id" not in entry:
            raise InvalidFileError(f"{source}: nodes[{number}] has no id")
        nodes.append(_node(str(entry["id"]), entry, notes))
    for number, entry in enumerate(_maps(data, edges_key, source)):
        if "source" not in entry or "target" not in entry:
            raise InvalidFileError(f"{source}: {edges_key}[{number}] has no source or no target")
        edges.append(_edge(str(entry["source"]), str(entry["target"]), entry, notes))
    notes.tell()
    graph = data.get("graph")
    name = str(graph.get("name") or "") if isinstance(graph, dict) else ""
    return Graph(source, name or Path(source).stem, nodes, edges, bool(data.get("directed")))


def _maps(data: Mapping[str, Any], key: str, source: str) -> list[Attributes]:
    entries = data[key]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidFileError(f"{source}: {key} is not a list of maps", hint="is it node-link JSON?")
    return entries


def read_topohub(name: str, warn: Warn) -> Graph:
    """A topology of the topohub package by `topohub:GROUP/NAME`, for example `topohub:sndlib/abilene`."""
    key = name.removeprefix(TOPOHUB)
    try:
        import topohub
    except ImportError:
        raise CannotHonourError(
            f"{name} needs the package topohub",
            hint="pip install topohub",
        ) from None
    data = None
    if re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)+", key) and ".." not in key:
        try:
            data = topohub.get(key)
        except (KeyError, OSError):
            data = None
    if data is None:
        hint = nearest(key, _topohub_keys(Path(topohub.__file__).parent / "data", key))
        raise InvalidFileError(f"topohub has no topology {key!r}", hint=hint)
    graph = read_node_link(data, name, warn)
    return Graph(name, key.replace("/", "-"), graph.nodes, graph.edges, graph.directed)


def _topohub_keys(folder: Path, key: str) -> list[str]:
    groups = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "_")
    group = key.partition("/")[0]
    if group not in groups:
        return [f"{name}/" for name in groups]
    files = sorted((folder / group).glob("**/*.json"))
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]


# --- SNDlib's native text ----------------------------------------------------------------------------------

_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_SNDLIB = re.compile(r"^\s*NODES\s*\(", re.MULTILINE)
_SNDLIB_NODE = re.compile(rf"^\s*(\S+)\s*\(\s*({_NUMBER})\s+({_NUMBER})\s*\)\s*$")
_SNDLIB_LINK = re.compile(
    rf"^\s*\S+\s*\(\s*(\S+)\s+(\S+)\s*\)\s*({_NUMBER})(?:\s+{_NUMBER})*\s*\(\s*({_NUMBER})?[^)]*\)\s*$"
)


def read_sndlib(text: str, source: str, warn: Warn) -> Graph:
    """SNDlib's native format. A link's rate is its pre-installed capacity, else its first module."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    section, in_mbit = "", bool(re.search(r"(?mi)^\s*unit\s*=\s*MBITPERSEC", text))
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.partition("#")[0].strip()
        opened = re.fullmatch(r"([A-Z_]+)\s*\(", stripped)
        if opened:
            section = opened[1]
        elif stripped == ")":
            section = ""
        elif stripped and section == "NODES":
            match = _SNDLIB_NODE.match(stripped)
            if match is None:
                raise InvalidFileError(f"{source}, line {number}: not a node: {stripped[:60]!r}")
            nodes.append(Node(match[1], match[1], _position(float(match[3]), float(match[2]))))
        elif stripped and section == "LINKS":
            match = _SNDLIB_LINK.match(stripped)
            if match is None:
                raise InvalidFileError(f"{source}, line {number}: not a link: {stripped[:60]!r}")
            capacity = float(match[3]) or float(match[4] or 0)
            rate = _bps(capacity, 1e6) if in_mbit else None
            edges.append(Edge(match[1], match[2], rate))
    if not in_mbit:
        warn(f"{source} does not say that its capacities are in Mbit/s; they are not used")
    return Graph(source, Path(source).stem, nodes, edges)


# --- attributes --------------------------------------------------------------------------------------------


class _Notes:
    """Attributes that could not be used, told once a kind."""

    def __init__(self, source: str, warn: Warn) -> None:
        self._source = source
        self._warn = warn
        self._unused: dict[str, list[str]] = {}

    def unused(self, what: str, value: object) -> None:
        self._unused.setdefault(what, []).append(str(value)[:100])

    def tell(self) -> None:
        for what, values in self._unused.items():
            more = f" and {len(values) - 1} more" if len(values) > 1 else ""
            self._warn(f"{self._source}: {what} {values[0]!r}{more} could not be used")


def _lower(attributes: Attributes) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in attributes.items()}


def _first(attributes: Attributes, keys: Iterable[str]) -> Any:
    return next((attributes[key] for key in keys if attributes.get(key) not in (None, "")), None)


def _node(key: str, attributes: Attributes, notes: _Notes) -> Node:
    given = _lower(attributes)
    label = _first(given, ("label", "name"))
    if label is not None and re.fullmatch(r"\s*\d*\s*", str(label)) and given.get("name"):
        label = given["name"]  # some conversions of the Zoo keep the number as the label
    pos = given.get("pos")
    lat, lon = _first(given, ("latitude", "lat")), _first(given, ("longitude", "lon", "lng"))
    if lat is None and isinstance(pos, (list, tuple)) and len(pos) == 2:
        lon, lat = pos
    position = None
    if lat is not None and lon is not None:
        position = _position(lat, lon)
        if position is None:
            notes.unused("the position", f"{lat}, {lon}")
    region = _first(given, ("country", "region"))
    return Node(key, None if label is None else str(label), position, None if region is None else str(region))


def _position(lat: Any, lon: Any) -> Position | None:
    try:
        north, east = float(lat), float(lon)
    except (TypeError, ValueError):
        return None
    return (north, east) if abs(north) <= 90 and abs(east) <= 180 else None


def _edge(src: str, dst: str, attributes: Attributes, notes: _Notes) -> Edge:
    given = _lower(attributes)
    km = _number(_first(given, ("dist", "km", "length_km", "distance_km")))
    return Edge(
        src, dst, _rate(given, notes), _delay(given, notes), km if km is not None and km >= 0 else None
    )


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _bps(value: Any, factor: float) -> Rate | None:
    number = _number(value)
    if number is None or not Rate.minimum_bps <= number * factor <= Rate.maximum_bps:
        return None
    return Rate(round(number * factor))


_PREFIXES = {"t": 1e12, "g": 1e9, "m": 1e6, "k": 1e3, "": 1.0}
# `10 Gbps`, `2.5Gb/s`, `622M`, `10GE`; not `10 GB/s`, which might be meant in bytes.
_LABEL_RATE = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*([tgmkTGMK])(?:b|bits?|bps|b/s|bits?/s|bE|BE|E|ig|igE)?(?![A-Za-z])"
)
_CARRIER = re.compile(r"\b(OC|STM)-?(\d{1,4})", re.IGNORECASE)
_CARRIER_BPS = {"OC": 51_840_000, "STM": 155_520_000}


def _rate(given: Attributes, notes: _Notes) -> Rate | None:
    """The rate of a link by whatever attribute says it: the Zoo's, one with a unit, or the label."""
    raw = _first(given, ("linkspeedraw", "rate_bps", "bandwidth_bps", "capacity_bps"))
    if raw is not None and (rate := _bps(raw, 1.0)):
        return rate
    speed = _first(given, ("linkspeed",))
    if speed is not None:
        units = str(given.get("linkspeedunits") or "").strip().lower()[:1]
        rate = _bps(speed, _PREFIXES.get(units, math.nan)) if units else None
        if rate:
            return rate
        notes.unused("the speed", f"{speed} {given.get('linkspeedunits') or ''}".strip())
    if rate := _bps(_first(given, ("rate_mbit", "rate_mbps", "bandwidth_mbps", "capacity_mbps")), 1e6):
        return rate
    text = _first(given, ("rate", "bandwidth", "capacity", "bw"))
    if text is not None:
        if isinstance(text, str) and _number(text) is None:
            try:
                return Rate.parse(text)
            except StormbedError as error:
                notes.unused("the rate", f"{text}: {error}")
        else:
            notes.unused("the rate without a unit", text)
    for key in ("linklabel", "linktype", "label"):
        label = str(given.get(key) or "")
        if found := _LABEL_RATE.search(label):
            return _bps(found[1], _PREFIXES[found[2].lower()])
        if found := _CARRIER.search(label):
            return _bps(found[2], _CARRIER_BPS[found[1].upper()])
    return None


def _delay(given: Attributes, notes: _Notes) -> Delay | None:
    millis = _number(_first(given, ("delay_ms", "latency_ms")))
    if millis is not None and 0 <= millis <= Delay.maximum_ns / 1e6:
        return Delay(round(millis * 1e6))
    text = _first(given, ("delay", "latency"))
    if text is None:
        return None
    if isinstance(text, str) and _number(text) is None:
        try:
            return Delay.parse(text)
        except StormbedError as error:
            notes.unused("the delay", f"{text}: {error}")
            return None
    notes.unused("the delay without a unit", text)
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
