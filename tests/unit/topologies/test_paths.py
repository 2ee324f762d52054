import time
from itertools import combinations, pairwise, permutations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import UsageError
from topologies.load import load_topology, topology_from_dict
from topologies.model import Topology
from topologies.paths import direct_path_number, fastest_without, hops_of, is_intact, path_sets


def network(size: int, links: dict[tuple[int, int], tuple[int, int]]) -> Topology:
    """Sites dc1.. and links {(a, b): (forward bps, backward bps)}."""
    return topology_from_dict(
        {
            "name": "t",
            "sites": {f"dc{k + 1}": {} for k in range(size)},
            "links": [
                {
                    "endpoints": [f"dc{a + 1}", f"dc{b + 1}"],
                    "forward": {"rate": f"{there}kbit"},
                    "backward": {"rate": f"{back}kbit"},
                }
                for (a, b), (there, back) in links.items()
            ],
        }
    )


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    rates = st.integers(1, 10)
    size = draw(st.integers(2, 7))
    tree = [(draw(st.integers(0, v - 1)), v) for v in range(1, size)]
    extra = draw(st.sets(st.sampled_from(list(combinations(range(size), 2)))))
    pairs = sorted({*tree, *extra})
    return network(size, {pair: (draw(rates), draw(rates)) for pair in pairs})


def cost(topology: Topology, path: tuple[int, ...]) -> float:
    return sum(1 / topology.rates()[hop] for hop in pairwise(path))


def test_by_hand() -> None:
    # dc1-dc2 is slow, the detour over dc3 fast, the one over dc4 between the two.
    topology = network(
        4, {(0, 1): (10, 10), (0, 2): (100, 100), (2, 1): (100, 100), (0, 3): (50, 50), (3, 1): (50, 50)}
    )
    paths = path_sets(topology)
    assert paths[0, 1] == ((0, 2, 1), (0, 3, 1), (0, 1))
    assert direct_path_number(paths, 0, 1) == 2
    assert direct_path_number(paths, 2, 3) is None
    assert path_sets(topology, limit=2)[0, 1] == ((0, 2, 1), (0, 1))
    assert path_sets(topology, limit=1)[0, 1] == ((0, 1),)


def test_each_direction_has_its_own_fastest_path() -> None:
    topology = network(3, {(0, 1): (100, 10), (0, 2): (100, 100), (2, 1): (100, 100)})
    paths = path_sets(topology)
    assert paths[0, 1] == ((0, 1), (0, 2, 1))
    assert paths[1, 0] == ((1, 2, 0), (1, 0))


def test_equal_costs_take_the_lowest_index() -> None:
    square = {(0, 2): (7, 7), (2, 3): (7, 7), (0, 1): (7, 7), (1, 3): (7, 7)}
    assert path_sets(network(4, square))[0, 3] == ((0, 1, 3), (0, 2, 3))
    # 1/3 + 1/6 against 1/2: equal but for rounding.
    rounded = network(3, {(0, 1): (3, 3), (1, 2): (6, 6), (0, 2): (2, 2)})
    assert path_sets(rounded)[0, 2] == ((0, 1, 2), (0, 2))


def test_netstorm_9_gives_most_pairs_two_paths() -> None:
    paths = path_sets(load_topology("netstorm-9"))
    assert len(paths) == 72
    assert paths[0, 1] == ((0, 2, 1), (0, 1))
    assert sum(len(p) > 1 for p in paths.values()) > 60


def test_limits_out_of_range() -> None:
    for limit in (0, 9):
        with pytest.raises(UsageError):
            path_sets(load_topology("pair"), limit)


@settings(max_examples=40, deadline=None)
@given(networks(), st.integers(1, 8))
def test_path_sets_hold_what_they_promise(topology: Topology, limit: int) -> None:
    size = len(topology.site_names)
    rates = topology.rates()
    paths = path_sets(topology, limit)
    assert set(paths) == set(permutations(range(size), 2))
    graph = networkx.DiGraph()
    for (u, v), bps in rates.items():
        graph.add_edge(u, v, cost=1 / bps)
    for (src, dst), found in paths.items():
        assert 1 <= len(found) <= limit
        used: set[frozenset[int]] = set()
        for path in found:
            assert path[0] == src and path[-1] == dst and len(set(path)) == len(path)
            hops = {frozenset(hop) for hop in pairwise(path)}
            assert all(hop in rates for hop in pairwise(path))
            assert not hops & used, "two paths share a link"
            used |= hops
        assert ((src, dst) in found) == ((src, dst) in rates)
        costs = [cost(topology, path) for path in found]
        assert costs[:-1] == sorted(costs[:-1])
        if limit == 8:
            assert costs == sorted(costs)
        if limit > 1:
            best = networkx.dijkstra_path_length(graph, src, dst, weight="cost")
            assert costs[0] == pytest.approx(best, rel=1e-8)
            fastest = [
                list(p)
                for p in networkx.all_simple_paths(graph, src, dst)
                if cost(topology, tuple(p)) <= best * (1 + 1e-9)
            ]
            assert list(found[0]) == min(fastest)


@settings(max_examples=30, deadline=None)
@given(networks())
def test_nothing_is_left_out(topology: Topology) -> None:
    """Without the links of a pair's paths the pair is apart, unless there are eight already."""
    undirected = networkx.Graph(list(topology.rates()))
    for (src, dst), found in path_sets(topology).items():
        rest = undirected.copy()
        rest.remove_edges_from(hop for path in found for hop in pairwise(path))
        assert len(found) == 8 or not networkx.has_path(rest, src, dst)


def test_nine_disjoint_paths_are_cut_to_eight_with_the_direct_one_kept() -> None:
    # dc1 and dc2 joined directly at a crawl and over nine others.
    links = {(0, 1): (1, 1)}
    for k in range(2, 11):
        links |= {(0, k): (100 + k, 100 + k), (k, 1): (100 + k, 100 + k)}
    found = path_sets(network(11, links))[0, 1]
    assert found == (*((0, k, 1) for k in range(10, 3, -1)), (0, 1))


def test_a_hundred_sites_take_seconds() -> None:
    topology = load_topology("waxman-100-1")
    began = time.process_time()  # not the clock: other programs run on this machine too
    paths = path_sets(topology)
    assert time.process_time() - began < 5
    assert len(paths) == 9900 and sum(map(len, paths.values())) > 15_000


def test_a_full_mesh_stops_at_the_limit() -> None:
    topology = load_topology("full-mesh-24?rate=20mbit..155mbit&seed=2")
    began = time.process_time()
    paths = path_sets(topology)
    assert time.process_time() - began < 5
    assert all(len(found) == 8 and any(len(path) == 2 for path in found) for found in paths.values())


def test_the_fastest_without_some_links() -> None:
    triangle = load_topology("triangle")
    assert hops_of(triangle, [0]) == {(0, 1), (1, 0)}
    pairs = [(0, 1), (0, 2), (1, 0)]
    around = {(0, 1): (0, 2, 1), (0, 2): (0, 2), (1, 0): (1, 2, 0)}
    assert fastest_without(triangle, pairs, hops_of(triangle, [0])) == around
    assert fastest_without(triangle, pairs, hops_of(triangle, [0, 2])) == {
        pair: (1, 2) if pair == (1, 2) else None for pair in pairs
    }
    assert is_intact((0, 2, 1), hops_of(triangle, [0]))
    assert not is_intact((2, 1, 0), hops_of(triangle, [0]))
