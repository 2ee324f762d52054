"""Topologies that several tests of the simulated world use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from topologies.load import topology_from_dict
from topologies.model import Topology

Build = Callable[..., Topology]


def build_topology(
    rates_mbps: Mapping[tuple[int, int], float], delay: str = "0ms", workers: int = 1
) -> Topology:
    """A topology from rates in Mbit/s: of both directions where only (u, v), u < v, is given."""
    n = 1 + max(max(pair) for pair in rates_mbps)
    links = []
    for (u, v), rate in rates_mbps.items():
        if (v, u) in rates_mbps and u > v:
            continue
        back = rates_mbps.get((v, u), rate)
        links.append(
            {
                "endpoints": [f"dc{u + 1}", f"dc{v + 1}"],
                "delay": delay,
                "forward": {"rate": f"{round(rate * 1e6)}bit"},
                "backward": {"rate": f"{round(back * 1e6)}bit"},
            }
        )
    sites = {f"dc{k + 1}": {"workers": workers} for k in range(n)}
    return topology_from_dict({"name": "built", "sites": sites, "links": links})


@pytest.fixture
def topology_of() -> Build:
    return build_topology
