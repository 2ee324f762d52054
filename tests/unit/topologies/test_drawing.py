from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from math import hypot

import pytest

from topologies.drawing import as_mermaid, as_svg
from topologies.load import load_topology, topology_from_dict

SVG = "{http://www.w3.org/2000/svg}"
NAMES = [
    "netstorm-9",
    "abilene",
    "geant",
    "b4",
    "pair",
    "line-5",
    "star-7",
    "ring-6",
    "full-mesh-5",
    "waxman-40-1",
]


def sites(root: ElementTree.Element) -> dict[str, tuple[float, float]]:
    found = {}
    for group in root.iter(f"{SVG}g"):
        circle, text = group.find(f"{SVG}circle"), group.find(f"{SVG}text")
        assert circle is not None and text is not None and text.text is not None
        found[text.text] = (float(circle.attrib["cx"]), float(circle.attrib["cy"]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_drawn_where_it_can_be_read(name: str) -> None:
    topology = load_topology(name)
    root = ElementTree.fromstring(as_svg(topology))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    points = sites(root)
    assert tuple(points) == topology.site_names
    for (x1, y1), (x2, y2) in combinations(points.values(), 2):
        assert hypot(x1 - x2, y1 - y2) > 30, "two sites are drawn on each other"
    assert all(0 < x < width and 0 < y < height for x, y in points.values())
    lines = list(root.iter(f"{SVG}line"))
    assert len(lines) == len(topology.links)
    for line, link in zip(lines, topology.directed[::2], strict=True):
        start = float(line.attrib["x1"]), float(line.attrib["y1"])
        assert start == points[link.src_name]
        title = line.find(f"{SVG}title")
        assert (
            title is not None
            and f"{link.src_name} to {link.dst_name}: {link.rate}, {link.delay}" in title.text
        )
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height


def test_figures_do_not_cover_each_other() -> None:
    root = ElementTree.fromstring(as_svg(load_topology("geant")))
    boxes = []
    for text in root.iter(f"{SVG}text"):
        if text.attrib.get("class") in ("rate", "delay") and text.text:
            half = 3.2 * len(text.text)
            x, y = float(text.attrib["x"]), float(text.attrib["y"])
            boxes.append((x - half, x + half, y))
    assert len(boxes) >= 30
    for a, b in combinations(boxes, 2):
        assert a[1] <= b[0] or b[1] <= a[0] or abs(a[2] - b[2]) >= 12


def test_light_and_dark_and_no_outside_reference() -> None:
    text = as_svg(load_topology("triangle"))
    assert "@media (prefers-color-scheme: dark)" in text and "var(" not in text
    assert not re.search(r"<script|<image|@import|url\(", text)
    assert text.count("http") == 1, "the namespace alone"


def test_rates_stand_at_the_end_that_they_leave() -> None:
    topology = topology_from_dict(
        {
            "name": "t",
            "sites": {"a": {}, "b": {}},
            "links": [
                {"endpoints": ["a", "b"], "forward": {"rate": "11mbit"}, "backward": {"rate": "22mbit"}}
            ],
        }
    )
    root = ElementTree.fromstring(as_svg(topology))
    points = sites(root)
    at = {t.text: float(t.attrib["x"]) for t in root.iter(f"{SVG}text") if t.attrib.get("class") == "rate"}
    for rate, near, far in (("11", "a", "b"), ("22", "b", "a")):
        assert abs(at[rate] - points[near][0]) < abs(at[rate] - points[far][0])


def test_the_map_is_cut_where_no_link_is() -> None:
    points = sites(ElementTree.fromstring(as_svg(load_topology("b4"))))
    assert points["dc1"][0] < points["dc3"][0] < points["dc8"][0] < points["dc10"][0], "Asia, America, Europe"
    assert points["dc9"][1] < points["dc2"][1], "north is up"


def test_drawings_are_repeatable() -> None:
    for name in ("full-mesh-5", "waxman-40-1"):
        assert as_svg(load_topology(name)) == as_svg(load_topology(name))


def test_names_are_escaped_and_one_site_is_a_drawing() -> None:
    text = as_svg(topology_from_dict({"name": "x", "sites": {"only": {"workers": 2}}}))
    assert "only: 2 workers" in text
    ElementTree.fromstring(text)


def test_many_links_are_drawn_without_figures() -> None:
    root = ElementTree.fromstring(as_svg(load_topology("full-mesh-30")))
    assert not [text for text in root.iter(f"{SVG}text") if text.attrib.get("class") in ("rate", "delay")]
    assert "Point at one" in "".join(root.itertext())


def test_mermaid_has_both_directions() -> None:
    lines = as_mermaid(load_topology("netstorm-9")).splitlines()
    assert lines[0] == "graph LR" and len(lines) == 1 + 9 + 26
    assert '    n0 -->|"38mbit, 0ms"| n1' in lines and '    n1 -->|"54mbit, 0ms"| n0' in lines
