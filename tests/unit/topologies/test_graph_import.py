"""Other people's files become topologies, and what had to be changed is said."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from topologies.errors import CannotHonourError, InvalidFileError, StormbedError
from topologies.load import Loaded, load_topology, open_topology

ZOO_GML = """\
graph [
  DateObtained "21/10/10"
  Network "Made up"
  label "Zoo Net"
  node [
    id 0
    label "New York"
    Country "United States"
    Longitude -74.00597
    Latitude 40.71427
    Internal 1
  ]
  node [
    id 1
    label "K&#246;ln"
    Longitude 6.95
    Latitude 50.93333
  ]
  node [
    id 2
    label "None"
  ]
  node [
    id 3
    label "New York"
  ]
  node [
    id 7
  ]
  edge [
    source 0
    target 1
    LinkSpeed "10"
    LinkLabel "10 Gbps"
    LinkSpeedUnits "G"
    LinkSpeedRaw 10000000000.0
  ]
  edge [
    source 1
    target 2
    LinkSpeed "622"
    LinkSpeedUnits "M"
  ]
  edge [
    source 2
    target 3
    LinkLabel "OC-12"
  ]
  edge [
    source 1
    target 0
    LinkLabel "2.5 Gb/s"
  ]
  edge [
    source 3
    target 3
    LinkLabel "1 Gbps"
  ]
  edge [
    source 3
    target 7
    LinkLabel "100 Mbps"
  ]
]
"""


def read(tmp_path: Path, name: str, text: str, options: str = "") -> Loaded:
    (tmp_path / name).write_text(text)
    return open_topology(f"{tmp_path / name}{options}")


def refuse(tmp_path: Path, name: str, text: str, options: str = "") -> str:
    with pytest.raises(InvalidFileError) as caught:
        read(tmp_path, name, text, options)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    assert name in message and "\n" not in message and len(message) < 400
    return message


def test_the_quirks_of_the_topology_zoo(tmp_path: Path) -> None:
    topology, warnings = (loaded := read(tmp_path, "zoo.gml", ZOO_GML)).topology, loaded.warnings
    assert topology.name == "Zoo-Net"
    assert topology.site_names == ("new-york", "koln", "none", "new-york-2", "site-7")
    assert topology.sites["new-york"].lat == 40.71427 and topology.sites["new-york"].region == "United States"
    # Two parallel links of 10 and 2.5 Gbit/s are one of 12.5; 6,053 km are 30 ms.
    first = topology.directed[0]
    assert (first.src_name, first.dst_name, first.rate.mbps) == ("new-york", "koln", 12_500)
    assert first.delay.ms == pytest.approx(30.3, abs=0.1)
    assert [link.rate.mbps for link in topology.directed[2::2]] == [622, 622.08, 100]
    assert topology.directed[2].delay.ns == 0
    assert warnings == (
        "site names were adapted: New York is new-york, Köln is koln, None is none and 1 more",
        "sites without a name were given one: site-7",
        "links from a site to itself were dropped: new-york-2",
        "parallel links were merged, their rates added: new-york-koln",
        "links of unknown length have no delay: koln-none, none-new-york-2, new-york-2-site-7",
    )


def test_warnings_of_load_topology_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "zoo.gml").write_text(ZOO_GML)
    load_topology(tmp_path / "zoo.gml")
    assert "parallel links were merged, their rates added: new-york-koln" in caplog.messages


def gml(*edges: str, labels: str = "abcd", directed: int = 0) -> str:
    nodes = "".join(f'node [ id {k}\n label "{label}" ]\n' for k, label in enumerate(labels))
    return f"graph [\n directed {directed}\n{nodes}{''.join(f'edge [ {e} ]' + chr(10) for e in edges)}]\n"


def test_a_directed_graph_gives_each_direction_its_own_rate(tmp_path: Path) -> None:
    text = gml(
        'source 0\n target 1\n bandwidth "10mbit"\n latency "5 ms"',
        'source 1\n target 0\n bandwidth "20 Mbit"\n latency "7ms"',
        'source 1\n target 2\n bandwidth "30mbit"\n latency "1ms"',
        labels="abc",
        directed=1,
    )
    loaded = read(tmp_path, "two.gml", text)
    shown = [(d.src_name, d.dst_name, d.rate.mbps, d.delay.ms) for d in loaded.topology.directed]
    assert shown == [("a", "b", 10, 5), ("b", "a", 20, 7), ("b", "c", 30, 1), ("c", "b", 30, 1)]
    assert loaded.warnings == ("links given in one direction are taken for both: b-c",)


def test_a_label_that_is_a_number_gives_way_to_a_name(tmp_path: Path) -> None:
    text = 'graph [\n node [ id 0\n label "0"\n name "Oslo" ]\n node [ id 1\n label "1" ]\n'
    text += "edge [ source 0\n target 1\n rate_mbit 5\n delay_ms 3 ]\n]\n"
    topology = read(tmp_path, "n.gml", text).topology
    assert topology.site_names == ("oslo", "1")
    assert (topology.directed[0].rate.mbps, topology.directed[0].delay.ms) == (5, 3)


@pytest.mark.parametrize("header", ["", " multigraph 0\n", " multigraph 1\n"])
def test_parallel_links_whatever_the_header_says(tmp_path: Path, header: str) -> None:
    text = gml("source 0\n target 1\n rate_mbit 3", "source 0\n target 1\n rate_mbit 4", labels="ab")
    text = "\ufeff" + text.replace(" directed 0\n", f" directed 0\n{header}")
    loaded = read(tmp_path, "n.gml", text)
    assert loaded.topology.directed[0].rate.mbps == 7
    assert "parallel links were merged, their rates added: a-b" in loaded.warnings


def test_names_are_unique_and_fit(tmp_path: Path) -> None:
    labels = ["X" * 40, "x" * 40, "x" * 32, "日本", "a_b", "a-b", "a b", "-", "ab"]
    nodes = "".join(f'node [ id {k}\n label "{label}" ]\n' for k, label in enumerate(labels))
    edges = "".join(f"edge [ source 0\n target {k} ]\n" for k in range(1, len(labels)))
    names = read(tmp_path, "n.gml", f"graph [\n{nodes}{edges}]\n", "?default-rate=1mbit").topology.site_names
    # A label that is a site name already keeps it, whoever else would like it.
    assert names == (
        *(f"{'x' * 30}-2", f"{'x' * 30}-3", "x" * 32, "site-3", "a-b-2", "a-b", "a-b-3", "site-7", "ab"),
    )  # fmt: skip
    assert all(len(name) <= 32 for name in names)


def test_rates_are_needed_and_can_be_given(tmp_path: Path) -> None:
    text = gml("source 0\n target 1", "source 1\n target 2\n LinkSpeedRaw 2000000.0", labels="abc")
    message = refuse(tmp_path, "n.gml", text)
    assert "links without a rate: a-b" in message and "?default-rate=100mbit'" in message
    assert "no link has a rate" in refuse(tmp_path, "m.gml", gml("source 0\n target 1", labels="ab"))

    def rates(options: str) -> list[float]:
        return [link.rate.mbps for link in open_topology(f"{tmp_path / 'n.gml'}{options}").topology.directed]

    assert rates("?default-rate=100mbit") == [100, 100, 2, 2]
    assert rates("?rate=100mbit") == [100] * 4
    drawn = rates("?rate=20mbit..155mbit&seed=1")
    assert drawn == [38, 135, 123, 54], "the published sequence"
    assert rates("?rate=20mbit..155mbit&seed=2") != drawn


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    text = gml(
        'source 0\n target 1\n LinkSpeed "fast"\n LinkSpeedUnits "G"\n capacity 5',
        'source 1\n target 2\n bandwidth "10 MB/s"\n delay 5',
        'source 2\n target 3\n LinkLabel "10 GB"\n latency "2 weeks"',
    ).replace("id 0\n", "id 0\n Latitude 91.0\n Longitude 3.0\n")
    found = read(tmp_path, "n.gml", text, "?default-rate=7mbit")
    told = " | ".join(found.warnings)
    for part in (
        "the position '91.0, 3.0'", "the speed 'fast G'", "the rate without a unit '5'", "10 MB/s", "80mbit",
        "the delay without a unit '5'", "2 weeks",
    ):  # fmt: skip
        assert part in told, told
    assert {link.rate.mbps for link in found.topology.directed} == {7}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not valid GML"),
        ("graph [", "not valid GML"),
        ("graph [\n node [ id 0 ]\n node [ id 0 ]\n]", "not valid GML: node id 0 is duplicated"),
        ('graph [\n node [ label "x" ]\n]', "not valid GML: node #0 has no 'id' attribute"),
        ("graph [\n node [ id 0 ]\n edge [ source 0\n target 9 ]\n]", "edge #0 has undefined target 9"),
        ("graph [\n ?? ]", "cannot tokenize"),
        ("graph [\n]", "there is no site in it"),
        ("graph [\n" + "a [\n" * 3000, "not valid GML"),
        (gml("source 0\n target 1", "source 2\n target 3"), "in 2 pieces; not joined to the largest: c, d"),
    ],
)
def test_gml_that_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refuse(tmp_path, "n.gml", text, "?rate=1mbit")


GRAPHML = """\
<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d35" />
  <key attr.name="label" attr.type="string" for="node" id="d33" />
  <key attr.name="Latitude" attr.type="double" for="node" id="d29" />
  <key attr.name="Longitude" attr.type="double" for="node" id="d32" />
  <key attr.name="Network" attr.type="string" for="graph" id="d1" />
  <graph edgedefault="undirected">
    <data key="d1">Abilene</data>
    <node id="0"><data key="d33">Paris</data><data key="d29">48.85</data><data key="d32">2.35</data></node>
    <node id="1"><data key="d33">Lyon</data><data key="d29">45.75</data><data key="d32">4.85</data></node>
    <edge id="e0" source="0" target="1"><data key="d35">1000000000.0</data></edge>
    <edge id="e1" source="1" target="0"><data key="d35">500000000.0</data></edge>
  </graph>
</graphml>
"""


def test_graphml(tmp_path: Path) -> None:
    loaded = read(tmp_path, "zoo.graphml", GRAPHML)
    assert loaded.topology.site_names == ("paris", "lyon") and loaded.topology.name == "Abilene"
    assert [d.rate.mbps for d in loaded.topology.directed] == [1500, 1500]
    assert loaded.topology.directed[0].delay.ms == pytest.approx(1.96, abs=0.02)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<graphml", "not valid GraphML"),
        ("<graphml></graphml>", "not valid GraphML"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]>' + GRAPHML, "it declares XML entities"),
        (GRAPHML.replace('target="1"', 'target="9"'), "a link ends at '9', which is no site of it"),
    ],
)
def test_graphml_that_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refuse(tmp_path, "n.graphml", text)


NODE_LINK: dict[str, Any] = {
    "directed": False,
    "multigraph": False,
    "graph": {"name": "abilene", "demands": {}},
    "nodes": [
        {"id": 0, "name": "ATLAng", "pos": [-85.5, 34.5]},
        {"id": 1, "name": "CHINng", "pos": [-87.62, 41.83]},
    ],
    "edges": [{"source": 0, "target": 1, "dist": 1000}],
}


@pytest.mark.parametrize("key", ["edges", "links"])
def test_node_link_json(tmp_path: Path, key: str) -> None:
    data = {**NODE_LINK, key: NODE_LINK["edges"]}
    if key == "links":
        del data["edges"]
    topology = read(tmp_path, "n.json", json.dumps(data), "?rate=1gbit").topology
    assert topology.site_names == ("atlang", "chinng") and topology.name == "abilene"
    assert topology.directed[0].delay.ms == 5, "200 km a ms"
    assert (topology.sites["atlang"].lat, topology.sites["atlang"].lon) == (34.5, -85.5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nodes": [{"name": "x"}]}, "nodes[0] has no id"),
        ({"edges": [{"source": 0}]}, "edges[0] has no source or no target"),
        ({"edges": [{"source": 0, "target": 5}]}, "a link ends at '5'"),
        ({"edges": 3}, "edges is not a list of maps"),
        ({"nodes": [{"id": 0}, {"id": 0}]}, "two sites have the id '0'"),
    ],
)
def test_node_link_json_that_is_wrong(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    assert expected in refuse(tmp_path, "n.json", json.dumps({**NODE_LINK, **change}), "?rate=1gbit")


SNDLIB = """\
?SNDlib native format; type: network; version: 1.0
# network abilene
META (
  granularity = 5min
  unit = MBITPERSEC
)
NODES (
  ATLAng ( -85.50 34.50 )
  CHINng ( -87.62 41.83 )
  DNVRng ( -105.00 40.75 )
)
LINKS (
  L1 ( ATLAng CHINng ) 9920.00 0.00 0.00 133.00 ( 9920.00 133.00 )
  L2 ( CHINng DNVRng ) 0.00 0.00 0.00 0.00 ( 40000.00 1004.00 155.00 1.00 )
)
DEMANDS (
  D1 ( ATLAng CHINng ) 1 2.00 UNLIMITED
)
"""


def test_sndlib(tmp_path: Path) -> None:
    topology = read(tmp_path, "abilene.txt", SNDLIB).topology
    assert [d.rate.mbps for d in topology.directed[::2]] == [9920, 40000]
    assert topology.directed[0].delay.ms == pytest.approx(4.2, abs=0.1)
    assert "no link has a rate" in refuse(tmp_path, "a.txt", SNDLIB.replace("  unit = MBITPERSEC\n", ""))
    wrong = SNDLIB.replace("( CHINng DNVRng )", "( CHINng )")
    assert "a.txt, line 14: not a link" in refuse(tmp_path, "a.txt", wrong)


def test_topohub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package's interface, in case it is not installed; test_topohub_itself has the real one."""
    (tmp_path / "data" / "sndlib").mkdir(parents=True)
    (tmp_path / "data" / "sndlib" / "abilene.json").write_text(json.dumps(NODE_LINK))
    package = types.ModuleType("topohub")
    package.__file__ = str(tmp_path / "__init__.py")

    def get(key: str) -> dict[str, Any]:
        file = tmp_path / "data" / f"{key}.json"
        if not file.exists():
            raise KeyError(key)
        data: dict[str, Any] = json.loads(file.read_text())
        return data

    package.get = get  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "topohub", package)
    topology = load_topology("topohub:sndlib/abilene?rate=10mbit")
    assert topology.name == "sndlib-abilene" and topology.directed[0].delay.ms == 5
    with pytest.raises(InvalidFileError, match=r"'topohub:sndlib/abilene.default-rate=100mbit'"):
        load_topology("topohub:sndlib/abilene")
    with pytest.raises(InvalidFileError, match="did you mean sndlib/abilene"):
        load_topology("topohub:sndlib/abilen")
    for key in ("nothing/here", "../../etc/passwd", "", "sndlib"):
        with pytest.raises(InvalidFileError, match="topohub has no topology"):
            load_topology(f"topohub:{key}")


def test_topohub_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "topohub", None)
    with pytest.raises(CannotHonourError, match="pip install topohub"):
        load_topology("topohub:sndlib/abilene")


def test_topohub_itself() -> None:
    pytest.importorskip(
        "topohub", reason="topohub is not installed; that its files are read is unverified here"
    )
    topology = load_topology("topohub:sndlib/abilene?rate=100mbit")
    assert (len(topology.sites), len(topology.links)) == (12, 15)
    delays = [link.delay.ms for link in topology.directed]
    assert (min(delays), max(delays)) == (0.66, 10.97)
    ours = load_topology("abilene")
    assert [link.delay for link in ours.directed] == [link.delay for link in topology.directed]
    assert len(load_topology("topohub:topozoo/Geant2012?rate=1gbit").sites) == 37


@pytest.mark.parametrize("name", ["x.gml", "x.graphml"])
def test_missing_files_are_said_as_ever(tmp_path: Path, name: str) -> None:
    with pytest.raises(StormbedError, match="there is no file"):
        load_topology(tmp_path / name)
