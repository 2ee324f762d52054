"""Topologies made by rule: line, star, ring, full mesh by size, and random ones by seed."""

from __future__ import annotations

import random
import re
from math import cos, exp, radians
from typing import Any

from topologies.errors import UsageError
from topologies.geo import delay_over, distance_km

FORMS = ("line-N", "star-N", "ring-N", "full-mesh-N", "waxman-N-SEED")

TOY_RATE = "100mbit"
TOY_DELAY = "10ms"

_NAME = re.compile(r"(?P<shape>line|star|ring|full-mesh|waxman)-(?P<size>\d{1,6})(?:-(?P<seed>\d{1,10}))?")
_SIZES = {
    "line": (2, 10_000),
    "star": (2, 10_000),
    "ring": (3, 10_000),
    "full-mesh": (2, 200),
    "waxman": (2, 2_000),
}

# The map of a random topology: a square of about 4000 km around the middle latitudes.
_CENTRE = (45.0, 0.0)
_SIDE_KM = 4000.0
_KM_PER_DEGREE = 111.2
_REACH = 0.15
"""Waxman's alpha: a link as long as this part of the square's diagonal is e times rarer than a short one."""
_LINKS_PER_SITE = 1.5


def is_generated(name: str) -> bool:
    """Whether a name such as `ring-6` asks for a topology made by rule."""
    return _NAME.fullmatch(name) is not None


def generate(name: str) -> dict[str, Any]:
    """The topology that a name asks for, as the data of a topology file.

    Sites are dc1, dc2, ...; in a star, dc1 is the middle. Toys have 100mbit and 10ms on every link. Raises
    UsageError for sizes that cannot be.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{name[:60]!r} is not a topology made by rule", hint=f"they are {', '.join(FORMS)}")
    shape, size, seed = match["shape"], int(match["size"]), match["seed"]
    least, most = _SIZES[shape]
    if not least <= size <= most:
        raise UsageError(f"a {shape} of {size} sites cannot be", hint=f"it has {least} to {most}")
    if shape == "waxman":
        if seed is None:
            raise UsageError(f"{name} has no seed", hint=f"write {name}-1")
        return _waxman(name, size, int(seed))
    if seed is not None:
        raise UsageError(f"a {shape} takes no seed", hint=f"write {shape}-{size}")
    pairs = {
        "line": [(k, k + 1) for k in range(size - 1)],
        "star": [(0, k) for k in range(1, size)],
        "ring": [(k, (k + 1) % size) for k in range(size)],
        "full-mesh": [(a, b) for a in range(size) for b in range(a + 1, size)],
    }[shape]
    return {
        "name": name,
        "defaults": {"rate": TOY_RATE, "delay": TOY_DELAY},
        "sites": {_site(k): {} for k in range(size)},
        "links": [{"endpoints": [_site(a), _site(b)]} for a, b in pairs],
    }


def _site(k: int) -> str:
    return f"dc{k + 1}"


def _waxman(name: str, size: int, seed: int) -> dict[str, Any]:
    """Sites at random on a square, near ones joined more often (Waxman 1988).

    A site's first link goes to an earlier one, so the network is connected; links are then added until there
    are 1.5 a site (mean degree 3). Waxman's own graphs have no such count and may be in pieces. Rates are
    20 to 155 Mbit/s, drawn for each direction; delays follow the distance.
    """
    source = random.Random(seed)
    half_lat = _SIDE_KM / 2 / _KM_PER_DEGREE
    half_lon = half_lat / cos(radians(_CENTRE[0]))
    positions = [
        (
            round(_CENTRE[0] + (2 * source.random() - 1) * half_lat, 4),
            round(_CENTRE[1] + (2 * source.random() - 1) * half_lon, 4),
        )
        for _ in range(size)
    ]
    scale = _REACH * _SIDE_KM * 2**0.5

    def likelihood(a: int, b: int) -> float:
        return exp(-distance_km(positions[a], positions[b]) / scale)

    pairs: set[tuple[int, int]] = set()
    for v in range(1, size):
        weights = [likelihood(u, v) for u in range(v)]
        left = source.random() * sum(weights)
        u = 0
        while u < v - 1 and left >= weights[u]:
            left -= weights[u]
            u += 1
        pairs.add((u, v))
    wanted = min(round(_LINKS_PER_SITE * size), size * (size - 1) // 2)
    while len(pairs) < wanted:
        a, b = sorted((int(source.random() * size), int(source.random() * size)))
        if a != b and (a, b) not in pairs and source.random() < likelihood(a, b):
            pairs.add((a, b))
    links = []
    for a, b in sorted(pairs):
        rates = [f"{20 + int(source.random() * 136)}mbit" for _ in range(2)]
        links.append(
            {
                "endpoints": [_site(a), _site(b)],
                "delay": str(delay_over(distance_km(positions[a], positions[b]))),
                "forward": {"rate": rates[0]},
                "backward": {"rate": rates[1]},
            }
        )
    sites = {_site(k): {"lat": lat, "lon": lon} for k, (lat, lon) in enumerate(positions)}
    return {"name": name, "sites": sites, "links": links}
