"""Which congestion control the connections between sites use, and how the kernel is brought to it.

Linux lets every network namespace but the machine's first choose only from a list that the first one holds,
`net.ipv4.tcp_allowed_congestion_control`. Where that list cannot be extended, as in most containers, the routes
across the WAN carry the choice: the kernel does not restrict those.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

WANTED: Final = "cubic"
"""Whatever the machine prefers: BBR without fq paces badly and makes runs incomparable."""
SPARE: Final = "reno"
"""Every kernel has it."""
DEFAULT: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
ALLOWED: Final = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

Way = Literal["inherited", "default", "route"]
"""How sites come to it: they have it from the machine, it is made their default, or their routes set it."""


@dataclass(frozen=True, slots=True)
class Congestion:
    """The sites' congestion control."""

    name: str
    way: Way = "default"

    def gap(self) -> str | None:
        """What a user has to know about it; None when it is the wanted one and programs may choose another."""
        if self.name != WANTED:
            return f"this kernel does not offer {WANTED}: connections between sites use {self.name}"
        if self.way == "route":
            return (
                f"this environment does not let sites default to {self.name}: the routes across the WAN set it "
                "instead, overriding what a program chose before connecting"
            )
        return None


def choose(wanted: str) -> str:
    """`wanted` where this kernel offers it, and reno where it does not. Loads the module of `wanted` if needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, wanted.encode())
        except PermissionError:
            pass  # the kernel has it, and this process may not use it
        except OSError:
            return SPARE
    return wanted


def allowed() -> list[str]:
    """What network namespaces may choose; empty where the kernel does not show it."""
    try:
        return ALLOWED.read_text(encoding="utf-8").split()
    except OSError:
        return []


def may_allow() -> bool:
    """Whether `allow` can extend the list: only as root in the machine's first network namespace."""
    return os.access(ALLOWED, os.W_OK)


def allow(name: str) -> bool:
    """Let all network namespaces of this machine choose `name`; True when the list had to be extended for it.

    The machine's own default stays. Where the list cannot be written, nothing happens.
    """
    names = allowed()
    if name in names or not names:
        return False
    try:
        ALLOWED.write_text(" ".join([*names, name]), encoding="utf-8")
    except OSError:
        return False
    return True


def default() -> str:
    """What this process's network namespace uses unless a program chooses."""
    return DEFAULT.read_text(encoding="utf-8").strip()


def apply(name: str) -> Congestion:
    """Make `name` the default of this process's network namespace, a new one, if that is permitted.

    What is refused here is refused in every site as well, so the routes have to carry it.
    """
    if default() == name:
        return Congestion(name, "inherited")
    try:
        DEFAULT.write_text(name, encoding="utf-8")
    except OSError:
        return Congestion(name, "route")
    return Congestion(name)
