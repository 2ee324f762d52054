"""Distances on the globe, and how long light in fibre takes for them."""

from __future__ import annotations

from math import asin, cos, radians, sin, sqrt

from topologies.units import Delay

Position = tuple[float, float]
"""Latitude and longitude in degrees."""

EARTH_RADIUS_KM = 6371.0
KM_PER_MS = 200.0
"""Light in fibre travels at two thirds of its speed in vacuum."""


def distance_km(a: Position, b: Position) -> float:
    """The great-circle distance (haversine formula)."""
    (lat_a, lon_a), (lat_b, lon_b) = a, b
    north, east = radians(lat_b - lat_a) / 2, radians(lon_b - lon_a) / 2
    h = sin(north) ** 2 + cos(radians(lat_a)) * cos(radians(lat_b)) * sin(east) ** 2
    return 2 * EARTH_RADIUS_KM * asin(min(1.0, sqrt(h)))


def delay_over(km: float) -> Delay:
    """The one-way delay of so many km of fibre, to the next 10 us."""
    return Delay(round(km / KM_PER_MS * 100) * 10_000)
