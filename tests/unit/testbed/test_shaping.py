from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation import shaping
from testbed.emulation.shaping import Shape
from topologies.errors import CannotHonourError
from topologies.load import load_topology, topology_from_dict
from topologies.model import DirectedLink, Topology
from topologies.units import Delay, Rate, Size

RATES = st.integers(min_value=64_000, max_value=100_000_000_000)
SHAPES = st.builds(Shape, st.just("d0b"), RATES, st.integers(min_value=9_000, max_value=2**30))


def pair(**values: str) -> Topology:
    link = {"endpoints": ["a", "b"], "rate": "100mbit", **values}
    return topology_from_dict({"name": "t", "sites": {"a": {}, "b": {}}, "links": [link]})


def test_the_lines_of_one_direction() -> None:
    """The whole plan, word for word: what was measured to carry all links of netstorm-9 at once."""
    assert shaping.add_lines(Shape("d3b", 80_000_000, 196_608)) == [
        "qdisc add dev d3b root handle 1: htb default 27",
        "class add dev d3b parent 1: classid 1:1 htb rate 80000000bit ceil 80000000bit "
        "burst 15360 cburst 15360 quantum 60000",
        "class add dev d3b parent 1:1 classid 1:9 htb rate 8000000bit ceil 80000000bit "
        "burst 15360 cburst 15360 prio 0 quantum 1514",
        *(
            f"class add dev d3b parent 1:1 classid 1:2{p} htb rate 8000bit ceil 80000000bit "
            f"burst 15360 cburst 15360 prio {p} quantum 60000"
            for p in range(8)
        ),
        "qdisc add dev d3b parent 1:9 handle 9: bfifo limit 100000",
        *(f"qdisc add dev d3b parent 1:2{p} handle 2{p}: bfifo limit 196608" for p in range(8)),
        "filter add dev d3b parent 1: protocol ip prio 1 u32 "
        "match ip protocol 6 0xff match u16 0x0000 0xff80 at 2 flowid 1:9",
        *(
            f"filter add dev d3b parent 1: protocol ip prio {p + 2} u32 "
            f"match ip tos {7 - p << 2:#04x} 0x1c flowid 1:2{p}"
            for p in range(7)
        ),
    ]


@given(SHAPES)
def test_every_rate_is_in_bit_and_every_class_fits_its_parent(shape: Shape) -> None:
    lines = shaping.add_lines(shape)
    for line in lines:
        for word, value in re.findall(r"\b(rate|ceil) (\S+)", line):
            assert re.fullmatch(r"[1-9]\d*bit", value), f"{word} {value} could be read as bytes"
    classes = [line for line in lines if line.startswith("class")]
    rates = [int(re.search(r" rate (\d+)bit", line)[1]) for line in classes]  # type: ignore[index]
    assert rates[0] == shape.rate_bps
    assert sum(rates[1:]) < shape.rate_bps, "what the leaves are assured of must fit the link"
    assert all(f" ceil {shape.rate_bps}bit " in line for line in classes)
    assert all(" quantum " in line for line in classes), "without it the kernel warns and guesses"


@given(SHAPES)
def test_every_class_has_one_leaf_one_queue_and_one_way_in(shape: Shape) -> None:
    lines = shaping.add_lines(shape)
    leaves = Counter(m for line in lines for m in re.findall(r"classid 1:(\d+)", line))
    queues = Counter(m for line in lines for m in re.findall(r"parent 1:(\d+) handle", line))
    ways = Counter(m for line in lines for m in re.findall(r"flowid 1:(\d+)|default (\d+)", line))
    assert set(leaves) - {"1"} == set(queues) == {a or b for a, b in ways}
    assert set(leaves.values()) == set(queues.values()) == set(ways.values()) == {1}
    assert [shaping.class_of_handle(f"2{7 - cls}:") for cls in range(8)] == list(range(8))
    assert shaping.class_of_handle("9:") is None and shaping.class_of_handle("1:") is None


@given(SHAPES, SHAPES)
def test_a_change_only_changes(old: Shape, new: Shape) -> None:
    lines = shaping.change_lines(old, new)
    assert all(line.startswith(("class change ", "qdisc change ")) for line in lines)
    assert bool(lines) == (old != new)
    added = {line.split(" ", 2)[2] for line in shaping.add_lines(new)}
    assert all(line.split(" ", 2)[2] in added for line in lines), "changing must arrive where adding would"


def test_a_change_touches_nothing_that_stays() -> None:
    old = Shape("d0a", 50_000_000, 200_000)
    assert shaping.change_lines(old, old) == []
    assert len(shaping.change_lines(old, replace(old, rate_bps=40_000_000))) == 10
    assert all(
        "bfifo limit 300000" in line for line in shaping.change_lines(old, replace(old, queue_bytes=300_000))
    )
    with pytest.raises(ValueError, match="cannot be changed into"):
        shaping.change_lines(old, replace(old, device="d0b"))


def test_directions_are_shaped_where_they_leave() -> None:
    forward, backward = pair().directed
    assert (shaping.ingress_device(forward), shaping.egress_device(forward)) == ("d0a", "d0b")
    assert (shaping.ingress_device(backward), shaping.egress_device(backward)) == ("d0b", "d0a")
    devices = [shape.device for shape in shaping.shapes(load_topology("netstorm-9").directed)]
    assert len(set(devices)) == 26


@given(rate=RATES, there=st.integers(0, 300_000_000), back=st.integers(0, 300_000_000))
def test_queues_hold_two_products_and_three_segments(rate: int, there: int, back: int) -> None:
    forward, backward = pair().directed
    forward = replace(forward, rate=Rate(rate), delay=Delay(there))
    backward = replace(backward, delay=Delay(back))
    size = shaping.gso_max_bytes([forward, backward])
    queue = shaping.shape(forward, backward, size).queue_bytes
    assert queue >= 3 * size
    assert queue >= 2 * rate / 8 * (there + back) / 1e9 - 1


def test_a_fast_long_link_has_room_for_its_product() -> None:
    """1 Gbit/s over 100 ms needs 12.5 MB in flight; the usual 1000 packets would lose most of it."""
    topology = pair(rate="1gbit", delay="50ms")
    assert shaping.shapes(topology.directed)[0].queue_bytes == 25_000_000


@pytest.mark.parametrize(("rate", "size"), [("100mbit", 65_536), ("20mbit", 65_536), ("19mbit", 16_000)])
def test_slow_links_make_small_segments(rate: str, size: int) -> None:
    assert shaping.gso_max_bytes(pair(rate=rate).directed) == size


def test_a_declared_queue_is_kept_and_segments_fit_it() -> None:
    topology = pair(queue="60KB")
    assert shaping.gso_max_bytes(topology.directed) == 20_000
    assert shaping.shapes(topology.directed)[0].queue_bytes == 60_000


def test_a_queue_too_small_for_tcp_is_refused() -> None:
    link: DirectedLink = replace(pair().directed[0], queue=Size(9_000))
    with pytest.raises(
        CannotHonourError, match=r"link a -> b: a queue of 9KB cannot carry TCP .use 9084B or more"
    ):
        shaping.gso_max_bytes([link])


def test_fast_links_may_catch_up_on_a_late_timer() -> None:
    assert "burst 15360 " in shaping.add_lines(Shape("d0a", 100_000_000, 1))[1]
    assert "burst 1250000 " in shaping.add_lines(Shape("d0a", 10_000_000_000, 1))[1]
