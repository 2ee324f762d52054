"""What the kernel's network settings are inside a testbed's namespaces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from testbed.emulation.congestion import Congestion
from topologies.model import DirectedLink
from topologies.paths import Path

LEAST_BUFFER_BYTES: Final = 4 * 2**20
MOST_BUFFER_BYTES: Final = 256 * 2**20


def tcp_buffer_bytes(links: Sequence[DirectedLink], paths: Iterable[Path]) -> int:
    """The most that one TCP connection may have in flight, for every site.

    It is the largest bandwidth-delay product of these paths three times, since the queues on a path hold
    two more, and that twice, since half of a socket's buffer is bookkeeping; within 4 MiB and 256 MiB.
    """
    by_ends = {(link.src, link.dst): link for link in links}
    largest = 0
    for path in paths:
        there = [by_ends[hop] for hop in pairwise(path)]
        back = [by_ends[link.dst, link.src] for link in there]
        bps = min(link.rate.bps for link in there)
        ns = sum(link.delay.ns + link.jitter.ns for link in (*there, *back))
        largest = max(largest, bps * ns // (8 * 10**9))
    return min(MOST_BUFFER_BYTES, max(LEAST_BUFFER_BYTES, 2 * 3 * largest))


def common() -> dict[str, str]:
    """For every namespace: no IPv6 chatter, no forwarding by hosts."""
    return {
        "net.ipv6.conf.all.disable_ipv6": "1",
        "net.ipv6.conf.default.disable_ipv6": "1",
        "net.ipv4.ip_forward": "0",
    }


def site(name: str, congestion: Congestion) -> dict[str, str]:
    """For a site.

    The two TSO settings make few large segments instead of many small ones, seven times the throughput with
    many links busy. Nothing is remembered from one connection to the next, so that runs are independent.
    """
    chosen = {"net.ipv4.tcp_congestion_control": congestion.name} if congestion.way == "default" else {}
    return common() | chosen | {
        "kernel.hostname": name,
        "net.ipv4.conf.all.rp_filter": "0",
        "net.ipv4.conf.default.rp_filter": "0",
        "net.ipv4.tcp_tso_rtt_log": "20",
        "net.ipv4.tcp_min_tso_segs": "10",
        "net.ipv4.tcp_no_metrics_save": "1",
    }


def buffers(buffer_bytes: int) -> dict[str, str]:
    """The limits of a site's TCP buffers; they grow to these by themselves."""
    return {
        "net.ipv4.tcp_rmem": f"4096 131072 {buffer_bytes}",
        "net.ipv4.tcp_wmem": f"4096 131072 {buffer_bytes}",
    }


def arguments(settings: dict[str, str]) -> list[str]:
    """The settings as arguments of `sysctl -q -e -w`; -e passes over what a kernel does not have."""
    return [f"{key}={value}" for key, value in settings.items()]
