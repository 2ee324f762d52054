"""How fast a direction of a link is: a pure planner from a directed link to lines for `tc -batch`.

Each direction is shaped once, on the delay line's egress device: one HTB parent at the declared rate; below
it a leaf for acknowledgements (TCP packets shorter than 128 bytes, a tenth of the rate guaranteed), without
which a slow reverse direction starves the fast one; and eight leaves, one a class, served strictly by
priority. Rates are of whole Ethernet frames, so TCP with full segments gets 0.956 of them as payload.

A live direction is only ever changed in place: deleting and adding a qdisc would drop what waits and let
traffic through unshaped. Source: own measurements; the structure follows HTB's own borrowing rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from topologies.addressing import delay_intf
from topologies.dscp import CLASSES, encode
from topologies.errors import CannotHonourError
from topologies.model import DirectedLink

GSO_MAX_BYTES: Final = 65_536
"""The largest TCP segment that hosts hand to the network; the wire's 1500-byte packets are cut from it."""
SLOW_GSO_MAX_BYTES: Final = 16_000
SLOW_BPS: Final = 20_000_000
"""Below this rate 64 KB take over 26 ms to send, too coarse for an even rate."""
LEAST_GSO_MAX_BYTES: Final = 3_028
"""Two frames."""

ACK_LEAF: Final = 9
ACK_QUEUE_BYTES: Final = 100_000
BURST_BYTES: Final = 15 * 1024
BURST_S: Final = 0.001
"""A fast link may catch up on a timer that was a millisecond late; slow ones keep HTB's usual 15 KB."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shaping of one device: `rate_bps` of whole frames, `queue_bytes` for each class."""

    device: str
    rate_bps: int
    queue_bytes: int


def egress_device(link: DirectedLink) -> str:
    """The device that a direction leaves the delay line by, where it is shaped."""
    return delay_intf(link.link, 1 - link.index % 2)


def ingress_device(link: DirectedLink) -> str:
    """The device that a direction enters the delay line by."""
    return delay_intf(link.link, link.index % 2)


def gso_max_bytes(links: Iterable[DirectedLink]) -> int:
    """The largest segment that hosts may send, for the whole network: a segment may cross any of its links.

    Raises:
        CannotHonourError: a declared queue does not hold three segments of two frames.
    """
    size = GSO_MAX_BYTES
    for link in links:
        if link.rate.bps < SLOW_BPS:
            size = min(size, SLOW_GSO_MAX_BYTES)
        if link.queue is not None:
            size = min(size, link.queue.bytes // 3)
            if size < LEAST_GSO_MAX_BYTES:
                raise CannotHonourError(
                    f"link {link.src_name} -> {link.dst_name}: a queue of {link.queue} cannot carry TCP",
                    hint=f"use {3 * LEAST_GSO_MAX_BYTES}B or more",
                )
    return size


def shape(link: DirectedLink, reverse: DirectedLink, gso_bytes: int) -> Shape:
    """The shaping of one direction.

    Args:
        link: the direction.
        reverse: the other direction of the same link; its delay counts in the round trip.
        gso_bytes: the largest segment the hosts send, from `gso_max_bytes`.

    A queue that the file does not set holds two bandwidth-delay products, and never less than three segments.
    """
    if link.queue is not None:
        return Shape(egress_device(link), link.rate.bps, link.queue.bytes)
    round_trip_ns = link.delay.ns + link.jitter.ns + reverse.delay.ns + reverse.jitter.ns
    two_products = 2 * link.rate.bps * round_trip_ns // (8 * 10**9)
    return Shape(egress_device(link), link.rate.bps, max(two_products, 3 * gso_bytes))


def shapes(links: Sequence[DirectedLink]) -> tuple[Shape, ...]:
    """The shaping of a whole network; `links` in the order of `Topology.directed`."""
    size = gso_max_bytes(links)
    return tuple(shape(link, links[link.index ^ 1], size) for link in links)


def add_lines(shape: Shape) -> list[str]:
    """Lines for `tc -batch` that shape a fresh device."""
    dev = f"dev {shape.device}"
    lines = [f"qdisc add {dev} root handle 1: htb default {_leaf(0)}"]
    lines += [f"class add {line}" for line in _classes(shape)]
    lines.append(f"qdisc add {dev} parent 1:{ACK_LEAF} handle {ACK_LEAF}: bfifo limit {ACK_QUEUE_BYTES}")
    lines += [f"qdisc add {line}" for line in _queues(shape)]
    # The flow of acknowledgements: protocol TCP and an IP length whose upper nine bits are zero.
    lines.append(
        f"filter add {dev} parent 1: protocol ip prio 1 u32 "
        f"match ip protocol 6 0xff match u16 0x0000 0xff80 at 2 flowid 1:{ACK_LEAF}"
    )
    for cls in range(CLASSES - 1, 0, -1):  # class 0 is the qdisc's default
        lines.append(
            f"filter add {dev} parent 1: protocol ip prio {_priority(cls) + 2} u32 "
            f"match ip tos {encode(0, cls):#04x} {encode(0, CLASSES - 1):#04x} flowid 1:{_leaf(cls)}"
        )
    return lines


def change_lines(old: Shape, new: Shape) -> list[str]:
    """Lines for `tc -batch` that turn one shaping of a device into another while it carries traffic."""
    if old.device != new.device:
        raise ValueError(f"{old.device} cannot be changed into {new.device}")
    lines = []
    if old.rate_bps != new.rate_bps:
        lines += [f"class change {line}" for line in _classes(new)]
    if old.queue_bytes != new.queue_bytes:
        lines += [f"qdisc change {line}" for line in _queues(new)]
    return lines


def class_of_handle(handle: str) -> int | None:
    """The class whose leaf has this qdisc handle ("20:" is class 7), or None for any other qdisc."""
    for cls in range(CLASSES):
        if handle == f"{_leaf(cls)}:":
            return cls
    return None


def _classes(shape: Shape) -> list[str]:
    rate = shape.rate_bps
    burst = max(BURST_BYTES, int(rate * BURST_S / 8))
    bursts = f"burst {burst} cburst {burst}"
    # What each class is sure of even below a saturating higher class: enough that none starves entirely.
    assured = max(8, min(8000, rate // 100))
    dev = f"dev {shape.device}"
    lines = [
        f"{dev} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit {bursts} quantum 60000",
        f"{dev} parent 1:1 classid 1:{ACK_LEAF} htb rate {max(8, rate // 10)}bit ceil {rate}bit {bursts} "
        "prio 0 quantum 1514",
    ]
    for cls in range(CLASSES - 1, -1, -1):
        lines.append(
            f"{dev} parent 1:1 classid 1:{_leaf(cls)} htb rate {assured}bit ceil {rate}bit {bursts} "
            f"prio {_priority(cls)} quantum 60000"
        )
    return lines


def _queues(shape: Shape) -> list[str]:
    return [
        f"dev {shape.device} parent 1:{_leaf(cls)} handle {_leaf(cls)}: bfifo limit {shape.queue_bytes}"
        for cls in range(CLASSES - 1, -1, -1)
    ]


def _priority(cls: int) -> int:
    return CLASSES - 1 - cls


def _leaf(cls: int) -> int:
    """The minor number of a class's leaf, in the digits that tc reads as hexadecimal."""
    return 20 + _priority(cls)
