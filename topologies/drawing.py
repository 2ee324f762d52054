"""A topology as an SVG drawing that reads in light and in dark, and as a Mermaid flowchart.

Sites stand where they are on the map when all of them say so, pulled apart where they crowd; else the links
alone decide. Each link shows, at either end, the rate that leaves there, and in its middle the delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import cos, hypot, log10, radians, sqrt
from xml.sax.saxutils import escape, quoteattr

from topologies.model import DirectedLink, Topology

Point = tuple[float, float]

_MARGIN_X, _MARGIN_TOP, _MARGIN_BOTTOM = 90.0, 64.0, 56.0
_RADIUS = 9.0
_APART = 74.0
"""Sites nearer to each other than this many pixels are pulled apart."""
_MOST_LABELLED_LINKS = 80
_MOST_BY_SPRINGS = 200
_GLYPH = 7.2

# Colours stand in the classes, not in variables: programs that turn SVG into pictures know no variables.
_STYLE = """
  text { font: 13px system-ui, "DejaVu Sans", sans-serif;
    paint-order: stroke; stroke-width: 4px; stroke-linejoin: round; }
  .title { font-size: 17px; font-weight: 600; }
  .quiet, .rate, .delay { font-size: 11px; }
  .rate, .delay { text-anchor: middle; dominant-baseline: central; }
  .delay { font-style: italic; }
  .link { stroke-linecap: round; }
  .site { stroke-width: 2px; }
"""
_COLOURS = """
  .ground { fill: %(ground)s; }
  text { fill: %(ink)s; stroke: %(ground)s; }
  .quiet, .rate, .delay { fill: %(quiet)s; }
  .link { stroke: %(link)s; }
  .site { fill: %(site)s; stroke: %(ground)s; }
"""
_LIGHT = {"ground": "#ffffff", "ink": "#1f2933", "quiet": "#52606d", "link": "#7c9cbd", "site": "#1f5f99"}
_DARK = {"ground": "#11161c", "ink": "#e4e9ee", "quiet": "#9fb0c0", "link": "#4f6d8c", "site": "#7cb5ec"}


def as_svg(topology: Topology) -> str:
    """The drawing as one SVG document without scripts or outside references."""
    width, height = _canvas(len(topology.sites))
    points = _layout(topology, width, height)
    both = _pairs(topology)
    labelled = len(both) <= _MOST_LABELLED_LINKS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label={quoteattr(f"The network {topology.name}")}>',
        f"<style>{_STYLE}{_COLOURS % _LIGHT}",
        f"  @media (prefers-color-scheme: dark) {{{_COLOURS % _DARK}  }}\n</style>",
        f'<rect class="ground" width="{width:g}" height="{height:g}"/>',
        f'<text class="title" x="24" y="34">{escape(topology.name)}</text>',
        f'<text class="quiet" x="24" y="{height - 20:g}">{escape(_caption(topology, labelled))}</text>',
    ]
    parts += [_line(points, there, back) for there, back in both]
    labels = _place_labels(topology, points, width)
    if labelled:
        parts += _figures(points, topology, labels)
    for k, (name, site) in enumerate(topology.sites.items()):
        x, y = points[k]
        workers = f"{site.workers} worker{'' if site.workers == 1 else 's'}"
        parts.append(
            f'<g><circle class="site" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS:g}"/>'
            f"<title>{escape(name)}: {workers}</title>"
            f'<text x="{labels[k].x:.1f}" y="{labels[k].y:.1f}">{escape(name)}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])


def as_mermaid(topology: Topology) -> str:
    """A Mermaid flowchart with one arrow a direction. Nodes are numbered: a site may be called `end` or
    `graph`.
    """
    lines = ["graph LR"]
    for k, (name, site) in enumerate(topology.sites.items()):
        lines.append(f'    n{k}["{name}<br/>{site.workers} worker{"" if site.workers == 1 else "s"}"]')
    lines += [f'    n{link.src} -->|"{describe(link)}"| n{link.dst}' for link in topology.directed]
    return "\n".join(lines) + "\n"


def describe(link: DirectedLink) -> str:
    """`100mbit, 10ms, loss 1%`: what a direction declares, zeroes left out but for the delay."""
    parts = [str(link.rate), str(link.delay)]
    if link.jitter.ns:
        parts.append(f"jitter {link.jitter}")
    if link.loss.ratio:
        parts.append(f"loss {link.loss}")
    return ", ".join(parts)


def _pairs(topology: Topology) -> list[tuple[DirectedLink, DirectedLink]]:
    """Both directions of every link."""
    return list(zip(topology.directed[::2], topology.directed[1::2], strict=True))


def _caption(topology: Topology, labelled: bool) -> str:
    text = f"{len(topology.sites)} sites, {len(topology.links)} links"
    if not topology.links:
        return text
    if not labelled:
        return f"{text}. Point at one to see its rates and delays."
    rates = {link.rate for link in topology.directed}
    if len(rates) == 1:
        text += f" of {_mbps(topology.directed[0])} Mbit/s each"
    elif any(there.rate != back.rate for there, back in _pairs(topology)):
        text += ". At either end of a link: the Mbit/s that leave there"
    else:
        text += ". On each link: Mbit/s of either direction"
    return f"{text}. In ms: delay of one way." if any(d.delay.ns for d in topology.directed) else f"{text}."


# --- where the sites stand ---------------------------------------------------------------------------------


def _canvas(sites: int) -> tuple[float, float]:
    growth = max(1.0, sqrt(sites / 16))
    return round(960 * growth), round(620 * growth)


def _layout(topology: Topology, width: float, height: float) -> list[Point]:
    """A point on the canvas for every site."""
    positions = [(site.lat, site.lon) for site in topology.sites.values()]
    known = [(lat, lon) for lat, lon in positions if lat is not None and lon is not None]
    if len(known) == len(positions) and len(set(known)) > 1:
        raw = _from_map(topology, known)
    else:
        raw = _from_links(topology)
    box = (_MARGIN_X, _MARGIN_TOP, width - _MARGIN_X, height - _MARGIN_BOTTOM)
    return _apart(_fit(raw, box), box)


def _from_map(topology: Topology, positions: Sequence[tuple[float, float]]) -> list[Point]:
    """Latitude and longitude on a plane, cut where links become shortest; crowds are evened out by half."""
    lons = sorted({lon for _, lon in positions})

    def unrolled(cut: float) -> list[float]:
        return [lon if lon >= cut else lon + 360 for _, lon in positions]

    def total(cut: float) -> float:
        xs = unrolled(cut)
        return sum(abs(xs[link.src] - xs[link.dst]) for link in topology.directed[::2])

    xs = unrolled(min(lons, key=lambda cut: (round(total(cut), 6), cut)))
    middle = sum(lat for lat, _ in positions) / len(positions)
    across = [x * cos(radians(middle)) for x in xs]
    down = [-lat for lat, _ in positions]
    return list(zip(_evened(across), _evened(down), strict=True))


def _evened(values: Sequence[float]) -> list[float]:
    """Halfway between the values and their ranks, both from 0 to 1; equal values stay equal."""
    distinct = sorted(set(values))
    low, high = distinct[0], distinct[-1]
    if high == low:
        return [0.5] * len(values)
    rank = {value: k / (len(distinct) - 1) for k, value in enumerate(distinct)}
    return [((value - low) / (high - low) + rank[value]) / 2 for value in values]


def _from_links(topology: Topology) -> list[Point]:
    if len(topology.sites) == 1:
        return [(0.0, 0.0)]
    import networkx  # needed here only

    graph = networkx.Graph()
    graph.add_nodes_from(range(len(topology.sites)))
    graph.add_edges_from((link.src, link.dst) for link in topology.directed[::2])
    if max(degree for _, degree in graph.degree) <= 2 and min(degree for _, degree in graph.degree) == 1:
        ends = [k for k, degree in graph.degree if degree == 1]
        order = networkx.shortest_path(graph, ends[0], ends[1])
        return [(float(order.index(k)), 0.0) for k in range(len(order))]
    if len(graph) <= _MOST_BY_SPRINGS:
        found = networkx.kamada_kawai_layout(graph)
    else:
        found = networkx.spring_layout(graph, seed=1)
    return [(float(found[k][0]), float(found[k][1])) for k in range(len(graph))]


def _fit(raw: Sequence[Point], box: tuple[float, float, float, float]) -> list[Point]:
    """Stretched to the box; what has no extent lies in its middle."""
    result = []
    spans = []
    for axis in (0, 1):
        values = [point[axis] for point in raw]
        spans.append((min(values), max(values) - min(values), box[axis], box[axis + 2] - box[axis]))
    for point in raw:
        fitted = [
            start + (length / 2 if extent < 1e-9 else (point[axis] - low) / extent * length)
            for axis, (low, extent, start, length) in enumerate(spans)
        ]
        result.append((fitted[0], fitted[1]))
    return result


def _apart(points: Sequence[Point], box: tuple[float, float, float, float]) -> list[Point]:
    """Sites pushed from each other until none are too near, or for so many rounds."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    apart = min(_APART, 0.8 * sqrt(area / max(1, len(points))))
    xs, ys = [x for x, _ in points], [y for _, y in points]
    for _ in range(60 if len(points) <= _MOST_BY_SPRINGS else 5):
        moved = False
        for a, b in combinations(range(len(points)), 2):
            dx, dy = xs[b] - xs[a], ys[b] - ys[a]
            if abs(dx) >= apart or abs(dy) >= apart:
                continue
            distance = hypot(dx, dy)
            if distance >= apart - 0.5:
                continue
            if distance < 1e-6:  # one above the other: apart by their numbers
                dx, dy, distance = 1.0, (b - a) / len(points), 1.0
            push = (apart - min(distance, apart)) / 2 / distance
            xs[a], ys[a] = xs[a] - dx * push, ys[a] - dy * push
            xs[b], ys[b] = xs[b] + dx * push, ys[b] + dy * push
            moved = True
        xs = [min(box[2], max(box[0], x)) for x in xs]
        ys = [min(box[3], max(box[1], y)) for y in ys]
        if not moved:
            break
    return list(zip(xs, ys, strict=True))


# --- lines and texts ---------------------------------------------------------------------------------------


def _line(points: Sequence[Point], there: DirectedLink, back: DirectedLink) -> str:
    (x1, y1), (x2, y2) = points[there.src], points[there.dst]
    rate = (there.rate.mbps * back.rate.mbps) ** 0.5
    thickness = min(6.0, max(1.2, 0.6 + 1.2 * log10(1 + rate)))
    title = f"{there.src_name} to {there.dst_name}: {describe(there)}\n{back.src_name} to {back.dst_name}: "
    return (
        f'<line class="link" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke-width="{thickness:.1f}"><title>{escape(title + describe(back))}</title></line>'
    )


def _figures(points: Sequence[Point], topology: Topology, names: Sequence[_Box]) -> list[str]:
    """Rates near the ends that they leave and the delay in the middle, or both in the middle where the two
    directions have the same rate. A text that finds no free place is left out; the titles have them all.
    """
    same = len({link.rate for link in topology.directed}) == 1
    taken = [*names, *(_Box(x - _RADIUS, y + 4, 2 * _RADIUS) for x, y in points)]
    texts = []
    for there, back in _pairs(topology):
        (x1, y1), (x2, y2) = points[there.src], points[there.dst]
        length = max(1.0, hypot(x2 - x1, y2 - y1))
        wanted: list[tuple[str, str, Sequence[float]]] = []
        middle = []
        if there.rate != back.rate:
            insets = [min(0.36, pixels / length) for pixels in (32, 44, 58, 74, 92)]
            wanted.append(("rate", _mbps(there), insets))
            wanted.append(("rate", _mbps(back), [1 - inset for inset in insets]))
        elif not same:
            middle.append(_mbps(there))
        if there.delay.ns or back.delay.ns:
            delays = [str(there.delay)] if there.delay == back.delay else [str(there.delay), str(back.delay)]
            middle.append(" / ".join(delays))
        if middle:
            wanted.append(("delay", ", ".join(middle), (0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68)))
        for kind, text, places in wanted:
            width = 6.4 * len(text) + 4
            for place in places:
                x, y = x1 + (x2 - x1) * place, y1 + (y2 - y1) * place
                box = _Box(x - width / 2, y + 4, width)
                if not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    texts.append(_text(kind, x, y, text))
                    break
    return texts


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _mbps(link: DirectedLink) -> str:
    return f"{link.rate.mbps:.4g}" if link.rate.mbps < 1e4 else f"{link.rate.mbps:.0f}"


@dataclass(frozen=True, slots=True)
class _Box:
    """A text's place: `x` is its left end, `y` its baseline."""

    x: float
    y: float
    width: float

    def overlaps(self, other: _Box) -> bool:
        apart_x = self.x >= other.x + other.width or other.x >= self.x + self.width
        return not (apart_x or abs(self.y - other.y) >= 14)

    def covers(self, x: float, y: float, slack: float) -> bool:
        inside_x = self.x - slack < x < self.x + self.width + slack
        return inside_x and self.y - 11 - slack < y < self.y + 3 + slack


def _place_labels(topology: Topology, points: Sequence[Point], width: float) -> list[_Box]:
    """A name beside each site, where it covers the least."""
    on_lines: list[Point] = []
    if len(topology.links) <= 4 * _MOST_LABELLED_LINKS:
        for link in topology.directed[::2]:
            (x1, y1), (x2, y2) = points[link.src], points[link.dst]
            steps = max(2, int(hypot(x2 - x1, y2 - y1) / 6))
            on_lines += [(x1 + (x2 - x1) * t / steps, y1 + (y2 - y1) * t / steps) for t in range(1, steps)]
    placed: list[_Box] = []
    for k, name in enumerate(topology.site_names):
        x, y = points[k]
        long = _GLYPH * len(name)
        gap = _RADIUS + 5
        candidates = [
            _Box(x + gap, y + 4, long), _Box(x - gap - long, y + 4, long),
            _Box(x - long / 2, y - gap, long), _Box(x - long / 2, y + gap + 9, long),
            _Box(x + gap - 4, y - gap + 3, long), _Box(x + gap - 4, y + gap + 5, long),
            _Box(x - gap + 4 - long, y - gap + 3, long), _Box(x - gap + 4 - long, y + gap + 5, long),
        ]  # fmt: skip

        def cost(box: _Box, k: int = k) -> float:
            outside = max(0.0, 4 - box.x) + max(0.0, box.x + box.width + 4 - width)
            texts = sum(box.overlaps(other) for other in placed)
            sites = sum(box.covers(*points[j], _RADIUS) for j in range(len(points)) if j != k)
            lines = sum(box.covers(*point, 0) for point in on_lines)
            return 10 * outside + 40 * texts + 40 * sites + lines

        placed.append(min(candidates, key=cost))
    return placed
