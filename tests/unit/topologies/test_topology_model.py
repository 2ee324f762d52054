import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import UsageError
from topologies.load import list_library, load_topology, topology_from_dict
from topologies.model import Topology
from topologies.units import Delay, Loss, Rate, Size

PUBLISHED_ORDER = [
    "12", "13", "23", "21", "25", "31", "32", "34", "43", "45", "46", "52", "57",
    "54", "64", "67", "68", "69", "75", "76", "78", "86", "87", "89", "96", "98",
]  # fmt: skip
PUBLISHED_RATES = [
    38, 135, 123, 54, 87, 81, 108, 127, 32, 23, 133, 78, 123,
    20, 80, 118, 51, 148, 142, 24, 23, 93, 147, 71, 49, 77,
]  # fmt: skip


def test_the_published_process_gives_the_published_rates() -> None:
    generator = random.Random(1)
    assert [20 + int(generator.random() * 136) for _ in PUBLISHED_ORDER] == PUBLISHED_RATES


def test_netstorm_9_declares_the_first_epoch() -> None:
    topology = load_topology("netstorm-9")
    assert topology.site_names == tuple(f"dc{k}" for k in range(1, 10))
    assert len(topology.links) == 13
    rates = topology.rates()
    declared = [rates[int(a) - 1, int(b) - 1] // 10**6 for a, b in PUBLISHED_ORDER]
    assert declared == PUBLISHED_RATES
    assert all(d.delay == Delay(0) and d.loss == Loss(0.0) for d in topology.directed)
    assert sum(rates.values()) == 2185 * 10**6


@pytest.mark.parametrize("name", list_library())
def test_the_library_loads_and_is_named_after_its_file(name: str) -> None:
    topology = load_topology(name)
    assert topology.name == name
    again = topology_from_dict(json.loads(json.dumps(topology.to_dict())))
    assert again.directed == topology.directed
    assert again.sites == topology.sites
    assert again.to_dict() == topology.to_dict()


def overridden() -> Topology:
    return topology_from_dict(
        {
            "name": "t",
            "defaults": {"delay": "10ms", "rate": "1gbit"},
            "sites": {"a": {"workers": 2, "region": "west"}, "b": None, "c": {}},
            "links": [
                {"endpoints": ["a", "b"], "backward": {"rate": "100mbit", "loss": "0.1%", "queue": "64KB"}},
                {
                    "endpoints": ["c", "b"],
                    "rate": "50mbit",
                    "delay": "1ms",
                    "forward": {"delay": "2ms", "jitter": "1ms"},
                },
            ],
        }
    )


def test_bursty_losses_are_written_as_they_are_read() -> None:
    topology = topology_from_dict(
        {
            "name": "bursty",
            "sites": {"a": {}, "b": {}},
            "links": [
                {
                    "endpoints": ["a", "b"],
                    "rate": "1mbit",
                    "loss": {"mean": "1%", "burst": 8},
                    "backward": {"loss": "0.5% burst 2.5"},
                }
            ],
        }
    )
    assert [link.loss for link in topology.directed] == [Loss(0.01, 8.0), Loss(0.005, 2.5)]
    assert topology_from_dict(topology.to_dict()).directed == topology.directed


def test_a_direction_inherits_from_link_then_defaults() -> None:
    ab, ba, cb, bc = overridden().directed
    assert (ab.index, ab.src, ab.dst, ab.src_name, ab.dst_name, ab.link) == (0, 0, 1, "a", "b", 0)
    assert (ba.index, ba.src, ba.dst, ba.link) == (1, 1, 0, 0)
    assert (ab.rate, ab.delay, ab.loss, ab.queue) == (Rate(10**9), Delay(10**7), Loss(0.0), None)
    assert (ba.rate, ba.delay, ba.loss, ba.queue) == (Rate(10**8), Delay(10**7), Loss(0.001), Size(64_000))
    assert (cb.src_name, cb.rate, cb.delay, cb.jitter) == (
        "c",
        Rate(5 * 10**7),
        Delay(2 * 10**6),
        Delay(10**6),
    )
    assert (bc.src_name, bc.delay, bc.jitter) == ("b", Delay(10**6), Delay(0))


def test_the_resolved_file_inherits_nothing_and_says_the_same() -> None:
    topology = overridden()
    resolved = topology.to_dict()
    assert "defaults" not in resolved
    assert resolved["links"][0] == {
        "endpoints": ["a", "b"],
        "delay": "10ms",
        "jitter": "0ms",
        "forward": {"rate": "1gbit", "loss": "0%"},
        "backward": {"rate": "100mbit", "loss": "0.1%", "queue": "64KB"},
    }
    assert topology_from_dict(resolved).directed == topology.directed


@given(st.floats(0.01, 10))
def test_scaling_scales_every_direction(factor: float) -> None:
    topology = overridden()
    scaled = topology.scaled(factor)
    assert [d.rate for d in scaled.directed] == [d.rate.scaled(factor) for d in topology.directed]
    assert [d.delay for d in scaled.directed] == [d.delay for d in topology.directed]
    assert scaled.site_names == topology.site_names


def test_scaling_does_not_touch_the_original() -> None:
    topology = load_topology("pair")
    assert topology.rates()[0, 1] == 10**8  # derived before the copy is made
    assert topology.scaled(0.5).rates() == {(0, 1): 5 * 10**7, (1, 0): 5 * 10**7}
    assert topology.rates()[0, 1] == 10**8


def test_lookups() -> None:
    topology = load_topology("netstorm-9")
    assert topology.index("dc9") == 8
    assert topology.neighbours(5) == (3, 6, 7, 8)
    assert topology.between(0, 2).rate == Rate(135 * 10**6)
    with pytest.raises(UsageError, match="dc3"):
        topology.index("dc33")
    with pytest.raises(UsageError, match="dc1 and dc9"):
        topology.between(0, 8)


def test_one_site_alone_is_a_network() -> None:
    topology = topology_from_dict({"name": "one", "sites": {"dc1": {}}})
    assert topology.directed == () and topology.neighbours(0) == ()


def test_topologies_are_values() -> None:
    assert load_topology("pair") == load_topology("pair")
    assert load_topology("pair") != load_topology("pair").scaled(2)
