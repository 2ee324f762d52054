"""Hand-computed networks as views (rates there are in Mbit/s)."""

from __future__ import annotations

from agents.planning.base import NetworkView

MBIT = 1_000_000


def undirected(n: int, links: str) -> NetworkView:
    """From "0-1:10 1-2:4": both directions at that rate."""
    rates: dict[tuple[int, int], float] = {}
    for entry in links.split():
        ends, rate = entry.split(":")
        u, v = map(int, ends.split("-"))
        rates[u, v] = rates[v, u] = float(rate) * MBIT
    return NetworkView(n, rates)


def directed(n: int, arcs: str) -> NetworkView:
    """From "1>0:10 0>1:2": one direction each."""
    rates: dict[tuple[int, int], float] = {}
    for entry in arcs.split():
        ends, rate = entry.split(":")
        u, v = map(int, ends.split(">"))
        rates[u, v] = float(rate) * MBIT
    return NetworkView(n, rates)


V1 = undirected(3, "0-1:10 1-2:10 0-2:4")
V2 = undirected(4, "0-1:8 1-2:4 2-3:8")
V3 = undirected(5, "0-1:20 0-2:10 0-3:5 0-4:2")
V4 = undirected(4, "0-1:10 0-2:10 1-3:10 2-3:10")
V5 = undirected(6, "0-1:6 1-4:3 4-5:2 0-2:2 2-3:3 3-5:6")
V6 = directed(3, "1>0:10 0>1:2 2>1:10 1>2:2 2>0:4 0>2:20")
V9 = undirected(
    9,
    "0-1:100 0-2:100 1-2:100 1-4:100 2-3:100 3-4:100 3-5:100 4-6:100 5-6:100 5-7:100 5-8:100 6-7:100 7-8:100",
)
V11 = undirected(3, "0-1:10 1-2:10 0-2:10")


def row(text: str) -> tuple[int | None, ...]:
    """Parents as the vectors write them: "-,0,1" with - for the root."""
    return tuple(None if entry == "-" else int(entry) for entry in text.split(","))


V9_PARENTS = (
    "-,0,0,2,1,3,4,5,5",
    "1,-,1,2,1,3,4,6,5",
    "2,2,-,2,1,3,4,5,5",
    "2,2,3,-,3,3,4,5,5",
    "1,4,1,4,-,3,4,6,5",
    "2,2,3,5,3,-,5,5,5",
    "1,4,1,4,6,6,-,6,5",
    "1,4,3,5,6,7,7,-,7",
    "2,2,3,5,3,8,5,8,-",
)
