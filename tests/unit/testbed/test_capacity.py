"""What is refused and what is warned about before a testbed is made."""

from __future__ import annotations

import pytest

from testbed.emulation.capacity import beyond, fitting_scale, shortage
from testbed.emulation.launch import limits_of
from topologies.errors import CannotHonourError
from topologies.load import load_topology, topology_from_dict
from topologies.model import Topology


def pair(**link: str) -> Topology:
    return topology_from_dict(
        {"name": "p", "sites": {"a": {}, "b": {}}, "links": [{"endpoints": ["a", "b"], **link}]}
    )


def test_a_link_with_delay_carries_less() -> None:
    assert beyond(pair(rate="2gbit").directed) == ()
    first, second = beyond(pair(rate="2gbit", delay="1ms").directed)
    assert (
        first
        == "a > b is declared at 2gbit, and this emulator carries at most 1.25gbit over a link with delay"
    )
    assert second.startswith("b > a")
    assert fitting_scale(pair(rate="2gbit", delay="1ms").directed) == 0.625
    assert beyond(pair(rate="2gbit", delay="1ms").scaled(0.625).directed) == ()


def test_many_cores_carry_more() -> None:
    links = load_topology("netstorm-9").scaled(2).directed
    assert shortage(load_topology("netstorm-9").directed, 2) is None, "measured: they do"
    assert shortage(links, 2) == (
        "all links together are declared at 4370 Mbit/s and 2 cores carry about 2000: busy all at once they "
        "will be slower than declared"
    )
    assert shortage(links, 4) is None


def test_what_cannot_be_is_refused_unless_allowed_and_then_recorded() -> None:
    fast = pair(rate="100gbit")
    with pytest.raises(CannotHonourError, match=r"100gbit.*--scale 0.03 would fit, --allow-degraded goes on"):
        limits_of(fast, False)
    limits = limits_of(fast, True)
    assert limits[0].startswith("a > b is declared at 100gbit")
    assert len(limits) >= 2
