"""Names that make topologies: the library, toys, random ones, and what stands behind a `?`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import networkx
import pytest

from topologies.errors import InvalidFileError, StormbedError, UsageError
from topologies.geo import delay_over, distance_km
from topologies.load import is_topology_name, list_library, load_topology, open_topology, relative_to
from topologies.model import Topology


def graph_of(topology: Topology) -> networkx.Graph:
    return networkx.Graph([link.endpoints for link in topology.links])


@pytest.mark.parametrize(
    ("name", "sites", "links", "longest_ms"),
    [("abilene", 12, 15, 10.97), ("geant", 22, 36, 33.99), ("b4", 12, 19, 70.65), ("netstorm-9", 9, 13, 0)],
)
def test_the_library(name: str, sites: int, links: int, longest_ms: float) -> None:
    topology = load_topology(name)
    assert (len(topology.sites), len(topology.links)) == (sites, links)
    assert max(link.delay.ms for link in topology.directed) == longest_ms
    assert sum(link.rate.mbps for link in topology.directed) < 10_000, "of a size that machines can emulate"
    assert name in list_library()


@pytest.mark.parametrize("name", ["abilene", "geant", "b4"])
def test_delays_of_the_library_follow_from_the_positions(name: str) -> None:
    topology = load_topology(name)
    for link in topology.directed:
        a, b = topology.sites[link.src_name], topology.sites[link.dst_name]
        assert a.lat is not None and a.lon is not None and b.lat is not None and b.lon is not None
        km = distance_km((a.lat, a.lon), (b.lat, b.lon))
        assert link.delay.ms == pytest.approx(delay_over(km).ms, abs=0.03)


def test_b4_is_the_published_graph() -> None:
    graph = graph_of(load_topology("b4"))
    assert networkx.edge_connectivity(graph) == 2
    assert sorted(dict(graph.degree).values()) == [2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("line-5", networkx.path_graph(5)),
        ("star-5", networkx.star_graph(4)),
        ("ring-6", networkx.cycle_graph(6)),
        ("full-mesh-4", networkx.complete_graph(4)),
    ],
)
def test_toys(name: str, same_as: networkx.Graph) -> None:
    topology = load_topology(name)
    assert topology.name == name
    assert topology.site_names == tuple(f"dc{k + 1}" for k in range(len(same_as)))
    assert {frozenset(link.endpoints) for link in topology.links} == {
        frozenset((f"dc{a + 1}", f"dc{b + 1}")) for a, b in same_as.edges
    }
    assert {(link.rate.mbps, link.delay.ms) for link in topology.directed} == {(100, 10)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("line-1", "a line of 1 sites cannot be"),
        ("ring-2", "it has 3 to"),
        ("full-mesh-201", "2 to 200"),
        ("line-99999", "2 to 10000"),
        ("ring-5-1", "a ring takes no seed"),
        ("waxman-20", "write waxman-20-1"),
    ],
)
def test_sizes_that_cannot_be(name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        load_topology(name)


def test_names_that_look_like_toys() -> None:
    with pytest.raises(InvalidFileError, match="did you mean ring-N"):
        load_topology("ring-x")


@pytest.mark.parametrize("size", [2, 3, 10, 64, 300])
def test_random_topologies_are_connected_and_have_the_degree_they_promise(size: int) -> None:
    topology = load_topology(f"waxman-{size}-7")
    assert len(topology.sites) == size
    assert len(topology.links) == min(round(1.5 * size), size * (size - 1) // 2)
    assert all(20 <= link.rate.mbps <= 155 and link.rate.bps % 10**6 == 0 for link in topology.directed)
    if size >= 64:
        assert min(link.rate.mbps for link in topology.directed) < 25
        assert max(link.rate.mbps for link in topology.directed) > 150
        positions = [(site.lat or 0, site.lon or 0) for site in topology.sites.values()]
        lengths = [distance_km(positions[link.src], positions[link.dst]) for link in topology.directed]
        others = [distance_km(a, b) for a, b in combinations(positions, 2)]
        near = "near sites are joined more often"
        assert sum(lengths) / len(lengths) < 0.8 * sum(others) / len(others), near


def test_random_topologies_depend_on_the_seed_alone() -> None:
    once, again = load_topology("waxman-12-3"), load_topology("waxman-12-3")
    assert once == again
    assert once.to_dict() | {"name": ""} != load_topology("waxman-12-4").to_dict() | {"name": ""}
    # Pinned, so that a name means the same network next year.
    first = once.directed[0]
    assert (first.src_name, first.dst_name, first.rate.mbps, first.delay.ms) == ("dc1", "dc2", 70, 2.96)


def test_options_replace_rates_and_delays() -> None:
    topology = load_topology("netstorm-9?rate=20mbit..155mbit&seed=1&delay=10ms")
    # The rule draws in the order of directed links, forward and backward of a link in turn.
    assert [link.rate.mbps for link in topology.directed[:5]] == [38, 135, 123, 54, 87]
    assert {link.delay.ms for link in topology.directed} == {10}
    assert {link.rate.mbps for link in load_topology("netstorm-9?rate=1gbit").directed} == {1000}
    assert {link.rate.bps for link in load_topology("ring-4?rate=10kbit..11kbit").directed} <= set(
        range(10_000, 11_001)
    )
    assert load_topology("abilene?delay=distance").directed[1].delay.ms == 0.66
    loaded = open_topology("netstorm-9?delay=1ms")
    assert loaded.topology.rates() == load_topology("netstorm-9").rates() and loaded.warnings == ()


def test_options_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "wan.yaml"
    file.write_text("name: t\nsites: {a: , b: }\nlinks: [{endpoints: [a, b], rate: 1mbit, loss: 1%}]\n")
    topology = load_topology(f"{file}?rate=5mbit")
    assert [(link.rate.mbps, link.loss.ratio) for link in topology.directed] == [(5, 0.01)] * 2
    odd = tmp_path / "what?rate=1mbit"
    odd.write_text(file.read_text())
    assert load_topology(str(odd)).directed[0].rate.mbps == 1, "a file of that very name has no options"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "no option behind its ?"),
        ("rat=1mbit", "unknown option 'rat'.*did you mean rate"),
        ("rate", "the option rate has no value"),
        ("rate=1mbit&rate=2mbit", "given twice"),
        ("rate=100", "has no unit"),
        ("rate=9mbit..3mbit", "ends below its beginning"),
        ("delay=far", "is not a delay"),
        ("delay=distance", "dc1 has no lat and lon"),
        ("rate=1mbit..2mbit&seed=x", "is not a seed"),
        ("default-rate=1mbit", "every link of netstorm-9 has a rate"),
    ],
)
def test_options_that_are_wrong(options: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        load_topology(f"netstorm-9?{options}")


def test_which_names_are_topologies() -> None:
    for name in (
        "netstorm-9",
        "ring-6",
        "waxman-5-1",
        "topohub:a/b",
        "x/y.gml",
        "b4?rate=1mbit",
        "Z.GraphML",
    ):
        assert is_topology_name(name)
    for name in ("quickstart", "x.yaml", "ring"):
        assert not is_topology_name(name)


def test_a_name_seen_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "wan.gml").write_text("graph []")
    assert relative_to(tmp_path, "wan.gml?rate=1mbit") == f"{tmp_path}/wan.gml?rate=1mbit"
    for name in ("netstorm-9", "topohub:sndlib/abilene?rate=1mbit", "other.yaml", "/etc/wan.yaml"):
        assert relative_to(tmp_path, name) == name


def test_no_name_ends_in_anything_but_one_of_our_errors() -> None:
    for name in ("?", "", " ", "a?b?c", "topohub:", "/", "x" * 5000, "waxman--1", "line-5?seed=-1", "\0"):
        with pytest.raises(StormbedError):
            load_topology(name)
