"""What a machine can carry at all, told before a testbed is made. Pure.

The figures are measurements of this emulator with large TCP segments, on cores of a 2024 cloud machine: two
cores carried 2.0 Gbit/s over NetStorm-9's 26 busy directions; a single direction alone reached 3 Gbit/s when
the kernel carried it and 1.25 Gbit/s through the delay line. Machines differ: calibration has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topologies.errors import CannotHonourError
from topologies.model import DirectedLink
from topologies.units import Rate

CORE_BPS: Final = 1_000_000_000
"""All directions busy at once, for each core."""
KERNEL_LINK_BPS: Final = 3_000_000_000
DELAYED_LINK_BPS: Final = 1_250_000_000
"""One direction with delay, jitter or loss."""


def most_bps(link: DirectedLink) -> int:
    """The most that a direction carries even by itself."""
    impaired = link.delay.ns or link.jitter.ns or link.loss.ratio
    return DELAYED_LINK_BPS if impaired else KERNEL_LINK_BPS


def beyond(links: Sequence[DirectedLink]) -> tuple[str, ...]:
    """Directions declared faster than any load can make them, in words."""
    return tuple(
        f"{link.src_name} > {link.dst_name} is declared at {link.rate}, and this emulator carries at most "
        f"{Rate(most_bps(link))} over a link{' with delay' if most_bps(link) < KERNEL_LINK_BPS else ''}"
        for link in links
        if link.rate.bps > most_bps(link)
    )


def require_within(links: Sequence[DirectedLink]) -> None:
    """Raise CannotHonourError naming a direction that would be faster than any load can make it."""
    found = beyond(links)
    if found:
        raise CannotHonourError(found[0], hint="use a lower rate, or `testbed up --allow-degraded`")


def fitting_scale(links: Sequence[DirectedLink]) -> float:
    """By what to multiply all rates so that none is beyond: three digits, rounded down."""
    least = min((most_bps(link) / link.rate.bps for link in links), default=1.0)
    return int(1000 * least) / 1000


def shortage(links: Sequence[DirectedLink], cores: int) -> str | None:
    """In words, that the machine cannot carry all directions busy at once; None where it can."""
    declared, carried = sum(link.rate.bps for link in links), cores * CORE_BPS
    # A direction counts as faithful from 0.9 of its rate on.
    if carried >= 0.9 * declared:
        return None
    return (
        f"all links together are declared at {declared / 1e6:.0f} Mbit/s and {cores} cores carry about "
        f"{carried / 1e6:.0f}: busy all at once they will be slower than declared"
    )
